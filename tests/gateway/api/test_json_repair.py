"""Text of a backend is read as JSON, repaired, or refused. Nothing raises."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.api.json_repair import parse_lenient, parse_object

escaped = st.sampled_from(
    [b"\\ud83d", b"\\ude00", b"\\\\", b'\\"', b"\\u0041", b"\\n", b"u", b"\xf0\x9f", b"\x00"]
)


@given(st.lists(st.one_of(escaped, st.binary(max_size=3)), max_size=8).map(b"".join))
def test_every_object_that_is_read_can_be_written(inside: bytes) -> None:
    for read in (parse_object, parse_lenient):
        document = read(b'{"a":"' + inside + b'"}')
        if document is not None:
            assert document == orjson.loads(orjson.dumps(document))


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(-(2**63), 2**63), st.none()), max_size=3))
def test_strict_json_is_read_the_same_by_both_parsers(document: dict[str, object]) -> None:
    written = orjson.dumps(document)
    assert document == parse_object(written) == parse_lenient(written)


@pytest.mark.parametrize(
    "payload", [b"", b"null", b"[1]", b'"x"', b"{", b'{"a":1}x', b"[" * 9999, b'{"a":' * 9999]
)
def test_other_values_than_objects_are_refused(payload: bytes) -> None:
    assert (parse_object(payload), parse_lenient(payload)) == (None, None)
