"""Output is fed whole, byte by byte and cut at every offset; the lines are the same."""

from __future__ import annotations

import pytest

from slotgate.gateway.processes.output import KEPT_LINES, MAX_LINE_BYTES, ChildOutput

SECRET = "k" * 43


def lines_of(*pieces: bytes) -> list[str]:
    lines: list[str] = []
    output = ChildOutput(lines.append, (SECRET,))
    for piece in pieces:
        output.feed(piece)
    output.end()
    return lines


def by_byte(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def test_lines_are_the_same_however_the_bytes_come() -> None:
    data = f"one\r\ntwo ü {SECRET}\n\n\x1b[31mred\x1b[0m \x07\nlast".encode()
    expected = ["one", f"two ü {'*' * 43}", "red", "last"]

    assert lines_of(data) == expected
    assert lines_of(*by_byte(data)) == expected
    for cut in range(len(data)):
        assert lines_of(data[:cut], data[cut:]) == expected


def test_a_long_line_loses_its_rest_and_only_its_rest() -> None:
    data = b"a" * (3 * MAX_LINE_BYTES) + b"\nnext\n"
    expected = ["a" * MAX_LINE_BYTES, "next"]

    assert lines_of(data) == expected
    assert lines_of(*by_byte(data)) == expected


@pytest.mark.parametrize("before", range(MAX_LINE_BYTES - 44, MAX_LINE_BYTES + 2))
def test_no_part_of_a_secret_is_left_where_a_line_is_cut(before: int) -> None:
    data = SECRET.encode() + b"a" * (before - 43) + SECRET.encode() + b"a" * 5000 + b"\n"

    for lines in (lines_of(data), lines_of(*by_byte(data))):
        assert "k" not in "".join(lines)


def test_bytes_that_are_not_text_are_replaced() -> None:
    assert lines_of(b"\xff\xfe ok\n") == ["\ufffd\ufffd ok"]


def test_the_last_lines_are_kept() -> None:
    output = ChildOutput(lambda _line: None)

    output.feed(b"".join(b"line %d\n" % i for i in range(KEPT_LINES + 7)))

    assert output.tail == tuple(f"line {i}" for i in range(7, KEPT_LINES + 7))


def test_the_memory_for_pending_output_is_bounded() -> None:
    output = ChildOutput(lambda _line: None, (SECRET,))

    for _ in range(100):
        output.feed(b"x" * 1000)

    assert repr(output) in {
        f"<ChildOutput 1 lines kept, {n} bytes pending>" for n in range(MAX_LINE_BYTES + 44)
    }
