"""The page, wide and narrow: every state has a character and a word, and nothing wraps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from slotgate.gateway.tools.top.screen import ASCII, UNICODE, Signs, page
from slotgate.gateway.tools.top.snapshot import ShownSlot, Snapshot, of_poll
from tests.gateway.tools.top.snapshots import STATUS, request, shown


def printed(
    snapshot: Snapshot, width: int, *, height: int | None = None, note: str = "", signs: Signs = UNICODE
) -> str:
    console = Console(width=width)
    drawn = page(snapshot, title="slotgate http://h:1", width=width, height=height, note=note, signs=signs)
    with console.capture() as capture:
        console.print(drawn)
    return capture.get()


def test_a_wide_page_shows_slots_queue_figures_and_requests() -> None:
    text = printed(shown(), 120)
    assert "2 running  5 queued (oldest 8.2 s)  84.2 tokens/s  first token 480 ms" in text
    assert "█▒QF··" in text
    assert "1 prefill, 1 generating, 1 quarantined, 1 foreign" in text.replace("2 idle, ", "")
    assert "oldest 12 s" in text
    assert "loading its model" in text
    assert "qwen3-30b-a3b" in text
    assert "upstream_truncated" in text
    assert "client_gone" in text
    assert "asleep" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 89, 90, 120, 200])
@pytest.mark.parametrize("signs", [UNICODE, ASCII])
def test_no_line_is_wider_than_the_page(width: int, signs: Signs) -> None:
    lines = printed(shown(), width, note="connection lost: " + "x" * 300, signs=signs).split("\n")
    assert max(map(len, lines)) <= width
    assert len(lines) == len(printed(shown(), 200, note="x").split("\n"))  # no slot is cut off


def test_sixty_columns_keep_the_important_columns() -> None:
    text = printed(shown(), 60)
    for word in ("gpu0", "█▒QF··", "team-a", "team-b", "4.0 s", "running", "queued", "tokens"):
        assert word in text
    assert "qwen3" not in text


def test_states_are_told_apart_without_colour() -> None:
    states = ("idle", "prefill", "generating", "working", "quarantined", "foreign")
    backend = replace(shown().backends[0], slots=tuple(map(ShownSlot, states)))
    for signs in (UNICODE, ASCII):
        text = printed(replace(shown(), backends=(backend,)), 160, signs=signs)
        row = next(line for line in text.split("\n") if line.startswith("gpu0"))
        assert len(set(signs.cells.values())) == len(states)
        for state in states:
            assert f"{signs.of(state)} {state}" in text
            assert f"1 {state}" in row


def test_a_terminal_without_unicode_gets_ascii() -> None:
    assert printed(shown(), 120, signs=ASCII).isascii()


def test_a_waterfall_shows_queue_then_prefill_then_answer() -> None:
    facts = request(1, queue_ms=500.0, ttft_ms=1000.0, total_ms=2000.0)
    waits = request(2, "queued", queue_ms=None, ttft_ms=None, total_ms=1000.0)
    text = printed(of_poll(STATUS, {"requests": [facts, waits]}), 60)
    first, second = [line.partition("0 s  ")[2].strip() for line in text.split("\n")[-3:-1]]
    assert first == "·" * first.count("·") + "▒" * first.count("▒") + "█" * first.count("█")
    assert [round(first.count(sign) / len(first), 1) for sign in "·▒█"] == [0.2, 0.2, 0.5]
    assert second == "·" * second.count("·")
    assert abs(len(second) - len(first) / 2) <= 1


def test_a_page_fits_into_the_height_of_its_window() -> None:
    many = of_poll(STATUS, {"requests": [request(number) for number in range(100)]})
    for height in (16, 24, 50):
        assert printed(many, 100, height=height).count("\n") <= height


def test_an_estimated_rate_and_draining_are_marked() -> None:
    assert "~14.0 tokens/s" in printed(of_poll(STATUS, {"requests": [request(1), request(2)]}), 100)
    assert "DRAINING" in printed(replace(shown(), draining=True), 100)


def test_many_slots_take_more_lines_and_none_is_missing() -> None:
    backend = replace(shown().backends[0], slots=(ShownSlot("generating"),) * 300)
    assert printed(replace(shown(), backends=(backend,), requests=()), 80).count("█") >= 300
