"""Members of a JSON object change, and no other byte does."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slotgate.gateway.api.json_splice import members, splice

Json = Any
names = st.one_of(
    st.text(max_size=3), st.sampled_from(["model", "max_tokens", "id_slot", "a", '"', "\\", "{", "é"])
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.text(alphabet='"\\{}[],: \n', max_size=6),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)
objects = st.dictionaries(names, values, max_size=5)
forms = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "indent": st.sampled_from([None, 2]),
        "separators": st.sampled_from([(",", ":"), (" , ", " : "), (",\r\n", ":\t")]),
    }
)
changes = st.dictionaries(names, st.one_of(st.none(), values.map(orjson.dumps)), max_size=3)


@pytest.mark.slow
@given(objects, forms, changes)
@example({}, {}, {"a": b"1"})
@example({"a": 1}, {}, {"a": None})
@example({"a": {"a": 1}, "b": [{"a": 1}]}, {}, {"a": None})
def test_a_spliced_document_parses_as_the_updated_object(
    document: dict[str, Json], form: dict[str, Any], changed: dict[str, bytes | None]
) -> None:
    expected = {name: value for name, value in document.items() if name not in changed} | {
        name: orjson.loads(value) for name, value in changed.items() if value is not None
    }
    assert expected == orjson.loads(splice(json.dumps(document, **form).encode(), changed))


@given(objects, forms, changes)
def test_untouched_members_keep_every_byte(
    document: dict[str, Json], form: dict[str, Any], changed: dict[str, bytes | None]
) -> None:
    written = json.dumps(document, **form).encode()
    before, after = texts(written), texts(splice(written, changed))
    assert list(document) == list(before)
    for name in before.keys() - changed.keys():
        assert before[name] == after[name]


def texts(document: bytes) -> dict[str, bytes]:
    """The members as they stand, without the white space behind them."""
    return {name: document[start:end].rstrip() for name, start, end in members(document)}


def test_a_document_without_changes_stays_the_same() -> None:
    assert splice(b' {"a": 1 } ', {}) == b' {"a": 1 } '


@pytest.mark.parametrize(
    "member",
    [
        b'"a":123456789012345678901234567890',
        b'"a":1.10e-0005',
        b'"a":-0',
        b'"a":0.1000000000000000055511151231257827',
        b'"\\u0061":"\\u00e9\\/"',
        b'"a":  {"model" :  [1 ,\t{"model":null}]}',
        b'"a":"}],{[\\"model\\":\\\\"',
        b'"a":[[],{},[[]],[{}]]',
        '"a":"é\u2028"'.encode(),
    ],
)
def test_a_member_passes_as_it_was_written(member: bytes) -> None:
    for document in (b'{"model":"x",%s}' % member, b'{ %s , "model" : "x" }' % member):
        assert b'{"model":"y",%s}' % member == splice(document, {"model": b'"y"'})
        assert b"{%s}" % member == splice(document, {"model": None})


def test_all_duplicates_of_a_changed_member_are_removed() -> None:
    document = b'{"model":1,"a":1,"\\u006dodel":2,"a":2}'
    assert splice(document, {"model": b"3"}) == b'{"model":3,"a":1,"a":2}'


@pytest.mark.parametrize("document", [b"{}", b" { } ", b"\n{\n}\n"])
def test_an_empty_object_has_no_members(document: bytes) -> None:
    assert list(members(document)) == []
    assert splice(document, {"a": b"1"}) == b'{"a":1}'
    assert splice(document, {"a": None}) == b"{}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        b'"%s"' % (b"\\n" * 1_000_000),
        b"[%s1]" % (b"[]," * 50_000),
        b'[%s""]' % (b'{"role":"user"},' * 50_000),
    ],
    ids=["escapes", "brackets", "objects"],
)
def test_splicing_takes_little_more_memory_than_the_document(value: bytes) -> None:
    document = b'{"a":%s,"model":"x"}' % value
    tracemalloc.start()
    spliced = splice(document, {"model": b'"y"'})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert b'{"model":"y","a":%s}' % value == spliced
    assert peak < 5 * len(document)
