"""No body that a client sends holds the event loop for more than 50 ms, whatever its kind."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.answer import exchange
from tests.support.client import request_bytes
from tests.support.gateway import CHAT
from tests.support.notation import answer
from tests.support.script import Script, Write
from tests.support.scripted import ScriptedUpstream
from tests.support.served import backend_table, served_gateway
from tests.support.standstill import Standstill

pytestmark = [pytest.mark.anyio, pytest.mark.quiet, pytest.mark.slow]

LONGEST_MS = 50.0
SIZE = 31 * 1024 * 1024
SLOW_TO_PARSE = SIZE // 2
"""orjson parses in one step that cannot be divided. Names, and texts with escapes or with characters of
several bytes, take it two to three times as long as others: at 31 MB they would hold the loop for 100 ms."""
JSON = b"content-type: application/json"
AUDIO = "/v1/audio/transcriptions"
BOUNDARY = b"x" * 60
FORM = b"content-type: multipart/form-data; boundary=" + BOUNDARY


def said(text: bytes) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % text


def repeated(text: bytes, size: int = SIZE) -> bytes:
    return text * (size // len(text))


def messages() -> bytes:
    return b'{"messages":[%b]}' % (repeated(b'{"role":"user","content":"x"},', 2 * 1024 * 1024)[:-1])


def form(content: bytes, *fields: bytes) -> bytes:
    parts = [b'form-data; name="file"; filename="a.wav"\r\n\r\n' + content, *fields]
    start = b"--" + BOUNDARY + b"\r\ncontent-disposition: "
    return b"".join(start + part + b"\r\n" for part in parts) + b"--" + BOUNDARY + b"--\r\n"


def field(number: int) -> bytes:
    return b'form-data; name="f%d"\r\n\r\nx' % number


PICTURE = base64.b64encode(random.Random(5).randbytes(SIZE * 3 // 4))
BODIES: dict[str, Callable[[], bytes]] = {
    "a long string": lambda: said(b"x" * SIZE),
    "a picture": lambda: said(b"data:image/png;base64," + PICTURE),
    "emoji": lambda: said(repeated("\U0001f600".encode(), SLOW_TO_PARSE)),
    "letters of two bytes": lambda: said(repeated("\u00e4".encode(), SLOW_TO_PARSE)),
    "escapes": lambda: said(repeated(b"\\n\\\\", SLOW_TO_PARSE)),
    "escaped emoji": lambda: said(repeated(b"\\ud83d\\ude00", SLOW_TO_PARSE)),
    "a long name": lambda: b'{"%b":1}' % (b"x" * SLOW_TO_PARSE),
    "many names": lambda: b"{%b}" % b",".join(b'"k%d":1' % number for number in range(2_500_000)),
    "many names below the bound": lambda: (
        b"{%b}" % b",".join(b'"k%d":1' % number for number in range(99_000))
    ),
    "many texts below the bound": lambda: (
        b'{"prompt":[%b]}' % repeated(b'"abcdefghijklmnopqrstuvwxyz",', 29 * 490_000)[:-1]
    ),
    "numbers": lambda: b'{"prompt":[%b]}' % repeated(b"123,", 4 * 490_000)[:-1],
    "fractions": lambda: b'{"prompt":[%b]}' % repeated(b"0.12345678901234567,", 20 * 490_000)[:-1],
    "many messages": messages,
    "empty arrays": lambda: b'{"messages":[%b]}' % repeated(b"[],")[:-1],
    "empty arrays below the bound": lambda: b'{"messages":[%b]}' % repeated(b"[],", 3 * 99_000)[:-1],
    "nested arrays": lambda: b'{"messages":%b' % (b"[" * SIZE),
    "nested and closed": lambda: b'{"messages":%b%b}' % (b"[" * 99_000, b"]" * 99_000),
    "brackets in a string": lambda: said(b"[{" * (SIZE // 2)),
    "quotes": lambda: b'"' * SIZE,
    "backslashes": lambda: said(b"\\" * SLOW_TO_PARSE),
    "blanks": lambda: b" " * SIZE,
    "blanks between members": lambda: b'{"model":"m",%b"messages":[]}' % (b" " * SIZE),
    "a number as long as the body": lambda: b'{"n":%b}' % (b"1" * SIZE),
}
FORMS: dict[str, Callable[[], bytes]] = {
    "a file": lambda: form(PICTURE),
    "a file of line ends": lambda: form(b"\r\n" * (SIZE // 2)),
    "a file that nearly has the boundary": lambda: form(repeated(b"\r\n--" + BOUNDARY[:-1])),
    "many fields": lambda: form(b"x", *map(field, range(100_000))),
    "a long field": lambda: form(b"x", b'form-data; name="prompt"\r\n\r\n' + b"x" * SIZE),
}


async def test_no_body_holds_the_event_loop(tmp_path: Path) -> None:
    """A gateway gets a body of every kind, and gets those that seem to take too long twice more."""
    whole: Script = [Write(answer(200, {"choices": [], "text": ""}))]
    fu = ScriptedUpstream(scripts={CHAT: whole, AUDIO: whole})
    standstill = Standstill(tmp_path / "standstill")
    async with fu, served_gateway(tmp_path, backend_table(fu.url), standstill=standstill) as served:

        async def held_ms(name: str) -> float:
            path, kind, made = (CHAT, JSON, BODIES) if name in BODIES else (AUDIO, FORM, FORMS)
            request = request_bytes("POST", path, kind, body=made[name]())
            standstill.reset()
            got = await exchange(served.url, request, within=30)
            assert got.status in (200, 400), name
            fu.generations.clear()
            return standstill.ms

        await exchange(served.url, request_bytes("POST", CHAT, JSON, body=said(b"x")))
        seen = {name: await held_ms(name) for name in (*BODIES, *FORMS)}
        print({name: round(ms) for name, ms in seen.items()})
        for _ in range(2):
            seen = {name: await held_ms(name) for name, ms in seen.items() if ms > LONGEST_MS}
    assert {name: ms for name, ms in seen.items() if ms > LONGEST_MS} == {}
