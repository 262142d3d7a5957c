"""Whatever a backend writes is read as JSON, parse_lenient, or refused; it never raises."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.api.json_repair import parse_lenient, parsed

escaped = st.sampled_from(
    [b"\\ud83d", b"\\ude00", b"\\\\", b'\\"', b"\\u0041", b"\\n", b"u", b"\xf0\x9f", b"\x00"]
)


@given(st.lists(st.one_of(escaped, st.binary(max_size=3)), max_size=8).map(b"".join))
def test_what_is_read_can_be_written(inside: bytes) -> None:
    for read in (parsed, parse_lenient):
        document = read(b'{"a":"' + inside + b'"}')
        if document is not None:
            assert document == orjson.loads(orjson.dumps(document))


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(-(2**63), 2**63), st.none()), max_size=3))
def test_what_is_strict_json_is_read_the_same_either_way(document: dict[str, object]) -> None:
    written = orjson.dumps(document)
    assert document == parsed(written) == parse_lenient(written)


@pytest.mark.parametrize(
    "payload", [b"", b"null", b"[1]", b'"x"', b"{", b'{"a":1}x', b"[" * 9999, b'{"a":' * 9999]
)
def test_what_is_no_object_is_refused(payload: bytes) -> None:
    assert (parsed(payload), parse_lenient(payload)) == (None, None)
