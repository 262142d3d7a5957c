"""A form gives the same fields and the same bytes, however its body is split into pieces."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.multipart import MAX_FIELD_BYTES, MAX_PARTS, Form, boundary_of

BOUNDARY = b"a-boundary"
Part = tuple[str, bytes, bytes]
"""The name, the other parameters of the disposition, and the value."""


def form_bytes(parts: Sequence[Part], lead: bytes = b"", boundary: bytes = BOUNDARY) -> bytes:
    line = b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
    body = b"".join(line % (boundary, name.encode(), more, value) for name, more, value in parts)
    return lead + body + b"--%b--\r\n" % boundary


def fed(*pieces: bytes) -> Form:
    form = Form(BOUNDARY)
    for piece in pieces:
        form.feed(piece)
    form.finish()
    return form


def cut(body: bytes, offsets: Sequence[int]) -> list[bytes]:
    borders = [0, *sorted(offset % (len(body) + 1) for offset in offsets), len(body)]
    return [body[start:stop] for start, stop in itertools.pairwise(borders)]


def refused(*pieces: bytes) -> ClientError:
    with pytest.raises(ClientError) as raised:
        fed(*pieces)
    assert raised.value.status == 400
    return raised.value


SOUND: Part = ("file", b'; filename="a.wav"', b"RIFF\r\n--a-bound\x00\r\n--\r\r\n-")
values = st.lists(
    st.sampled_from([b"m", b"\r\n", b"--", b"\r", b"\n--", BOUNDARY[:4], b"\r\n--" + BOUNDARY[:9], b"\xff"])
).map(b"".join)
parts = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["model", "language", "x[]", "max_tokens"]), st.just(b""), values),
        st.just(SOUND),
    ),
    max_size=5,
)
cuts = st.lists(st.integers(0, 2000), max_size=12)
LEADS = st.sampled_from([b"", b"\r\n", b"\r\n\r\n", b"\n"])


@given(given=parts, offsets=cuts, lead=LEADS)
def test_any_split_gives_the_same_fields_and_the_same_body(
    given: list[Part], offsets: list[int], lead: bytes
) -> None:
    body = form_bytes([*given, SOUND], lead)
    pieces = cut(body, offsets)
    form = fed(*pieces)
    assert form.size == len(body)
    assert form.members() == fed(body).members()
    expected: dict[str, list[str]] = {}
    for name, more, value in given:
        if not more:
            expected.setdefault(name, []).append(value.decode(errors="replace"))
    assert form.members() == {name: texts if len(texts) > 1 else texts[0] for name, texts in expected.items()}
    out = form.changed({})
    assert [id(piece) for piece in out] == [id(piece) for piece in pieces]


@given(value=values.filter(bool), offsets=cuts, lead=LEADS, at=st.integers(0, 2), given=st.booleans())
def test_any_split_gives_the_same_body_with_changed_values(
    value: bytes, offsets: list[int], lead: bytes, at: int, *, given: bool
) -> None:
    """Empty values are not tested, because the gateway refuses them."""
    others: list[Part] = [("language", b"", b"en"), SOUND]
    model: Part = ("model", b"", value)
    body = form_bytes([*others[:at], *([model] if given else []), *others[at:]], lead)
    form = fed(*cut(body, offsets))
    out = b"".join(form.changed({"model": b'"its/own"', "max_tokens": b"64", "id_slot": None}))
    read = fed(out)
    assert read.members() == {"language": "en", "model": "its/own", "max_tokens": 64}
    if given:
        without = b"".join(form.changed({"model": b'"its/own"'}))
        assert without == form_bytes([*others[:at], ("model", b"", b"its/own"), *others[at:]], lead)
    assert SOUND[2] in out


@given(offsets=cuts, given=st.booleans())
def test_the_bytes_of_a_file_are_never_joined_or_copied(offsets: list[int], *, given: bool) -> None:
    """The body consists of pieces that arrived, and of views of pieces."""
    model: list[Part] = [("model", b"", b"m")] if given else []
    pieces = cut(form_bytes([*model, SOUND]), offsets)
    out = fed(*pieces).changed({"model": b'"other"'})
    came = {id(piece) for piece in pieces}
    ours = [one for one in out if id(one.obj if isinstance(one, memoryview) else one) not in came]
    assert len(ours) == 1
    assert b"other" in ours[0]
    assert b"RIFF" not in ours[0]


def test_a_form_in_pieces_of_one_byte_is_read() -> None:
    body = form_bytes([("model", b"", b"a\r\n--a-boundarx"), SOUND, ("stream", b"", b"true")])
    form = fed(*(body[at : at + 1] for at in range(len(body))))
    assert form.members() == {"model": "a\r\n--a-boundarx", "stream": True}
    out = b"".join(form.changed({"model": b'"b"'}))
    assert out == form_bytes([("model", b"", b"b"), SOUND, ("stream", b"", b"true")])


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("stream", b"true", True),
        ("stream", b"false", False),
        ("stream", b"True", False),
        ("stream", b"1", False),
        ("max_tokens", b"64", 64),
        ("max_tokens", b"-1", "-1"),
        ("max_tokens", "\u0666".encode(), "\u0666"),
        ("n", b"4", "4"),
        ("model", "模型/é:1".encode(), "模型/é:1"),
        ("model", b"", ""),
        ("model", b"\xff", "\ufffd"),
    ],
)
def test_a_field_is_read_as_by_llama_server(name: str, value: bytes, read: Any) -> None:  # noqa: ANN401
    assert fed(form_bytes([(name, b"", value)])).members() == {name: read}


def test_a_repeated_field_is_a_list_as_in_llama_server() -> None:
    form = fed(form_bytes([("model", b"", b"a"), SOUND, ("model", b"", b"b")]))
    assert form.members() == {"model": ["a", "b"]}


def test_a_part_with_a_file_name_is_not_a_field() -> None:
    assert fed(form_bytes([("model", b'; filename="m"', b"a")])).members() == {}


def test_the_beginning_of_a_long_field_is_read_and_all_of_it_is_forwarded() -> None:
    body = form_bytes([("prompt", b"", b"x" * 3 * MAX_FIELD_BYTES), ("model", b"", b"m")])
    form = fed(*cut(body, range(0, len(body), 1000)))
    assert form.members() == {"prompt": "x" * MAX_FIELD_BYTES, "model": "m"}
    assert b"".join(form.changed({})) == body


def test_bytes_after_the_end_are_forwarded_unread() -> None:
    body = form_bytes([("language", b"", b"en")]) + b"epilogue"
    form = fed(body)
    assert b"".join(form.changed({"model": b'"m"'})).endswith(b"--a-boundary--\r\nepilogue")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"--other\r\n",
        form_bytes([SOUND])[:-4],
        b"--a-boundary\r\nno header\r\n\r\n",
        b"--a-boundary\r\n: empty\r\n\r\n",
        b"--a-boundary\r\n" + b"x" * 20000,
        form_bytes([("x", b"", b"")] * (MAX_PARTS + 1)),
    ],
)
def test_a_body_that_is_not_a_form_is_refused(body: bytes) -> None:
    assert refused(*cut(body, [5, 9])).code == "invalid_request"


def test_text_before_the_first_boundary_is_refused_at_any_split() -> None:
    body = form_bytes([("max_tokens", b"", b"9")], lead=b"\r\nlead\r\n")
    assert str(refused(body)) == str(refused(*cut(body, [1, 3, 9])))


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'Multipart/Form-Data; charset=utf-8; boundary="a b"', b"a b"),
        (b"multipart/form-data", None),
        (b"multipart/form-data; boundary=", None),
        (b"multipart/form-data; boundary=" + b"x" * 71, None),
        (b'multipart/form-data; boundary="a\r\nb"', None),
        (b"multipart/mixed; boundary=abc", None),
        (b"application/json", None),
        (b"", None),
    ],
)
def test_the_boundary_comes_from_the_content_type(content_type: bytes, boundary: bytes | None) -> None:
    if boundary is not None:
        assert boundary_of(content_type) == boundary
        return
    with pytest.raises(ClientError) as raised:
        boundary_of(content_type)
    assert raised.value.param == "content-type"


PLAIN = [
    b'form-data; name="x"',
    b'FORM-DATA; NAME="x"',
    b'form-data;name="x"',
    b"form-data; name=x",
    b'form-data; name="x" ',
]
FILES = [
    b'form-data; name="x"; filename="a.wav"',
    b'form-data; name="x"; filename="a=b; c=d.wav"',
    b'form-data; name="x"; filename="a; b \\" c.wav"',
    b"form-data; name=\"x\"; filename=a.wav; filename*=UTF-8''%c3%a9.wav",
]
ODD = [
    b"form-data",
    b'name="x"',
    b'attachment; name="x"',
    b'form-data; filename="a"; name="x"',
    b'form-data; name="x"; name="max_tokens"',
    b'form-data; name="x"; filename="a"; name="max_tokens"',
    b'form-data; name="x"; filename="a;name=max_tokens"',
    b'form-data; name="x"; filename=""',
    b"form-data; name=\"x\"; filename*=UTF-8''a",
    b'form-data; name="x"; filename="a"; filename="b"',
    b"form-data; name*=UTF-8''max_tokens",
    b'form-data; name*0="max_"; name*1="tokens"',
    b'form-data; name="x\\"; name=max_tokens; y="',
    b'form-data; name="x;name=max_tokens"',
    b'form-data; name="x"; size=3',
    b"form-data; name='x'",
    b'form-data; name = "x"',
]


def one_part(*headers: bytes) -> bytes:
    return b"--%b\r\n%b\r\n\r\n9\r\n--%b--\r\n" % (BOUNDARY, b"\r\n".join(headers), BOUNDARY)


@pytest.mark.parametrize("said", PLAIN)
def test_a_field_is_found_in_every_plain_form_of_its_disposition(said: bytes) -> None:
    assert fed(one_part(b"Content-Disposition: " + said)).members() == {"x": "9"}


@pytest.mark.parametrize("said", FILES)
def test_a_file_is_no_field(said: bytes) -> None:
    assert fed(one_part(b"Content-Disposition: " + said)).members() == {}


@pytest.mark.parametrize("said", ODD)
def test_a_disposition_that_servers_read_differently_is_refused(said: bytes) -> None:
    assert "Content-Disposition" in refused(one_part(b"Content-Disposition: " + said)).message


def test_two_dispositions_of_one_part_are_refused() -> None:
    header = b'Content-Disposition: form-data; name="%b"'
    assert "be there once" in refused(one_part(header % b"x", header % b"max_tokens")).message
