"""Exchanges are recorded and played through real sockets: the same bytes, the same endings, no keys."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from slotgate.gateway.testing.cassette import (
    AT_ONCE,
    Cassette,
    Ending,
    Player,
    Recorder,
    UpstreamFault,
    listening,
)
from slotgate.gateway.testing.cassette.guarded import guarded
from slotgate.gateway.testing.cassette.request import STATUS_PATHS
from tests.support.cassettes import SeenResponse, playing, posted, recording, recordings, seen
from tests.support.client import RawClient, read_stream, request_bytes
from tests.support.gateway import CHAT, chat, running_gateway, settings_for, text_of
from tests.support.llama import RealLlama
from tests.support.logged import logged
from tests.support.notation import DONE, END, STOP, H, T, answer, chunked, error_body
from tests.support.script import Fin, Gate, Rst, Script, Stall, Write, cut, stream
from tests.support.scripted import ScriptedUpstream, refusing_url

pytestmark = pytest.mark.anyio

SURE: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": 24}
WHOLE = stream(T("a"), T("\u2028 ü 😀"), STOP, DONE)


# -- a real llama-server


async def test_answers_of_a_real_llama_server_are_played_byte_for_byte(
    tiny_llama: RealLlama, tmp_path: Path
) -> None:
    requests = [
        chat(**SURE),
        chat(**SURE, stream=False),
        chat("two", **SURE, n=2),
        chat(max_tokens="x"),
    ]
    async with recording(tiny_llama.url, tmp_path) as url:
        live = [await posted(url, CHAT, json) for json in requests]
        live.append(await posted(url, "/v1/messages", chat(**SURE)))
    assert [one.status for one in live] == [200, 200, 200, 400, 200]
    assert [one.closed for one in live] == [True, False, True, True, True]  # behind streams, and errors
    for _ in range(2):
        async with playing(tmp_path) as url:
            again = [await posted(url, CHAT, json) for json in requests]
            again.append(await posted(url, "/v1/messages", chat(**SURE)))
        assert [(one.status, one.body, one.told, one.closed) for one in again] == [
            (one.status, one.body, one.told, one.closed) for one in live
        ]
    assert b"[DONE]" in live[0].body


async def test_the_gateway_in_front_of_a_player_serves_the_official_client_what_llama_server_said(
    tiny_llama: RealLlama, tmp_path: Path
) -> None:
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    async def said(url: str) -> tuple[list[str | None], str | None, list[str]]:
        async with DefaultAsyncHttpxClient(trust_env=False) as http:
            client = AsyncOpenAI(base_url=f"{url}/v1", api_key="sg-any", max_retries=0, http_client=http)
            create = client.chat.completions.create
            asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **SURE}
            streamed = await create(stream=True, user="somebody", **asked)
            deltas = [chunk.choices[0].delta.content async for chunk in streamed if chunk.choices]
            whole = await create(**asked)
            models = await client.models.list()
            return deltas, whole.choices[0].message.content, [model.id for model in models.data]

    async with recording(tiny_llama.url, tmp_path) as recorder:
        async with running_gateway(settings_for(recorder)) as gateway:
            live = await said(gateway.url)
    assert "".join(filter(None, live[0])).count(" ") > 10
    for speed in (AT_ONCE, 50.0):
        async with playing(tmp_path, speed) as player, running_gateway(settings_for(player)) as gateway:
            assert gateway.fleet.backends["gpu0"].pool.total == tiny_llama.slots
            assert await said(gateway.url) == live


# -- how it ended


ENDINGS: dict[str, tuple[Script, Ending]] = {
    "a whole stream": (WHOLE, Ending.COMPLETE),
    "a whole answer": ([Write(answer(200, {"a": 1}))], Ending.COMPLETE),
    "an error": ([Write(answer(400, error_body(400, "no", "odd"), b"Connection: close"))], Ending.COMPLETE),
    "nothing in it": ([Write(b"HTTP/1.1 204 No Content\r\n\r\n")], Ending.COMPLETE),
    "cut in a stream": ([Write(H + chunked(T("a"))), Fin()], Ending.CUT_SHORT),
    "reset in a stream": ([Write(H + chunked(T("a"))), Gate(), Rst()], Ending.CUT_SHORT),
    "cut in an answer": ([Write(answer(200, {"a": "bcdefg"})[:-3]), Fin()], Ending.CUT_SHORT),
    "no head": ([Fin()], Ending.CUT_SHORT),
    "no HTTP": ([Write(H + b"zz\r\n")], Ending.CUT_SHORT),
    "to the end of the connection": (
        [Write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nabc"), Fin()],
        Ending.COMPLETE,
    ),
}


@pytest.mark.parametrize("name", ENDINGS)
async def test_an_exchange_ends_as_it_ended(name: str, tmp_path: Path) -> None:
    script, ending = ENDINGS[name]
    gates = [step for step in script if isinstance(step, Gate)]
    async with ScriptedUpstream(scripts={CHAT: script}) as fu, recording(fu.url, tmp_path) as url:
        asking = asyncio.ensure_future(posted(url, CHAT, chat()))
        if gates:
            await fu.until(lambda: fu.generations and fu.generations[0].write_ns)
            await asyncio.sleep(0.05)  # a reset may overtake bytes that were written before it
            gates[0].event.set()
        live = await asking
    [kept] = recordings(tmp_path)
    assert kept.response.ending is ending
    async with playing(tmp_path) as url:
        again = await posted(url, CHAT, chat())
    assert alike(again) == alike(live)
    assert live.clean_end == (ending is Ending.COMPLETE)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def alike(one: SeenResponse) -> tuple[object, ...]:
    if one.head is None:
        return (None, one.body, one.clean_end, one.closed)
    told = {name: value for name, value in one.told.items() if name != b"connection"}
    return (one.status, told, one.body, one.clean_end, one.closed)


async def test_the_upstream_of_a_client_that_leaves_is_closed_and_its_reads_are_kept(tmp_path: Path) -> None:
    script: Script = [Write(H + chunked(T("a"))), Stall()]
    async with ScriptedUpstream(scripts={CHAT: script}) as fu, recording(fu.url, tmp_path) as url:
        async with await RawClient.connect(url) as client:
            await client.post(CHAT, chat())
            await anext(client.frames())
        await fu.at_most_open(0)
    [kept] = recordings(tmp_path)
    assert (kept.response.ending, kept.response.body) == (Ending.ABANDONED, T("a"))


@pytest.mark.slow
async def test_an_answer_that_runs_when_recording_stops_is_kept_up_to_there(tmp_path: Path) -> None:
    script: Script = [Write(H + chunked(T("a"))), Stall()]
    async with ScriptedUpstream(scripts={CHAT: script}) as fu:
        async with recording(fu.url, tmp_path) as url:
            client = await RawClient.connect(url)
            await client.post(CHAT, chat())
            await anext(client.frames())
        [kept] = recordings(tmp_path)
        async with client:
            assert (kept.response.ending, kept.response.body) == (Ending.ABANDONED, T("a"))


# -- the content of recordings


async def test_reads_are_kept_as_they_came(tmp_path: Path) -> None:
    """Reads are kept even if they cut a character, or hold many frames."""
    gates = [Gate() for _ in range(4)]
    events = [T("ü"), T("b") + T("c"), STOP + DONE]
    parts = [events[0][:-40], events[0][-40:], events[1], events[2]]
    steps = [step for part, gate in zip(parts, gates, strict=True) for step in (Write(chunked(part)), gate)]
    fu = ScriptedUpstream(scripts={CHAT: [Write(H), *steps, Write(END), Fin()]})
    got = b""
    async with fu, recording(fu.url, tmp_path) as url, await RawClient.connect(url) as client:
        await client.post(CHAT, chat())
        pieces = client.pieces()
        for part, gate in zip(parts, gates, strict=True):
            while not got.endswith(part):
                got += await anext(pieces)
            gate.event.set()
        assert [piece async for piece in pieces] == []
    [kept] = recordings(tmp_path)
    assert [read.data for read in kept.response.reads] == parts
    times = [kept.response.head_ms, *(read.ms for read in kept.response.reads), kept.response.end_ms]
    assert times == sorted(times)


async def test_a_body_cut_anywhere_comes_back_whole(tmp_path: Path) -> None:
    body = b"".join([T("a"), T("😀"), STOP, DONE])
    raw = H + chunked(body) + END
    script: Script = [*cut(raw, *range(len(H) + 3, len(raw), 7)), Fin()]
    async with ScriptedUpstream(scripts={CHAT: script}) as fu, recording(fu.url, tmp_path) as url:
        assert (await posted(url, CHAT, chat())).body == body
    async with playing(tmp_path) as url:
        assert (await posted(url, CHAT, chat())).body == body


async def test_an_upload_is_passed_on_as_it_is_and_played_for_another_boundary(tmp_path: Path) -> None:
    path = "/v1/audio/transcriptions"

    def upload(boundary: bytes, sound: bytes = bytes(range(256)) * 500) -> bytes:
        part = b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        form = part % (boundary, b'file"; filename="a.wav', sound) + part % (boundary, b"model", b"m")
        content_type = b"content-type: multipart/form-data; boundary=" + boundary
        return request_bytes("POST", path, content_type, body=form + b"--%b--\r\n" % boundary)

    script: Script = [Write(answer(200, {"text": "hello"}))]
    async with ScriptedUpstream(scripts={path: script}) as fu, recording(fu.url, tmp_path) as url:
        live = await seen(url, upload(b"first"))
        [request] = fu.generations
        assert request.raw.partition(b"\r\n\r\n")[2] == upload(b"first").partition(b"\r\n\r\n")[2]
    async with playing(tmp_path) as url:
        assert (await seen(url, upload(b"second"))).body == live.body
        assert (await seen(url, upload(b"second", b"other"))).status == 404


async def test_equal_requests_that_overlap_are_named_in_the_order_of_asking(tmp_path: Path) -> None:
    gates = [Gate(), Gate()]
    scripts: list[Script] = [[gate, Write(answer(200, {"n": number}))] for number, gate in enumerate(gates)]
    fu = ScriptedUpstream(lambda request: scripts[fu.generations.index(request)])
    async with fu, recording(fu.url, tmp_path) as url:
        asking = []
        for number in range(2):
            asking.append(asyncio.ensure_future(posted(url, CHAT, chat())))
            await fu.generation(number)
        for number in (1, 0):  # the later one is answered first
            gates[number].event.set()
            await asking[number]
    assert [kept.response.body for kept in recordings(tmp_path)] == [b'{"n":0}', b'{"n":1}']


@pytest.mark.slow
async def test_the_status_of_the_upstream_is_kept_once_however_often_it_is_asked(tmp_path: Path) -> None:
    async with ScriptedUpstream() as fu, recording(fu.url, tmp_path) as url:
        for _ in range(3):
            for path in ("/health", "/props", "/slots", "/v1/models"):
                assert (await seen(url, request_bytes("GET", path))).status == 200
    names = sorted(name.rpartition("-")[0] for name in files_of(tmp_path))
    assert names == ["get-health", "get-props", "get-slots", "get-v1-models"]


async def test_an_upstream_without_llama_servers_status_can_be_recorded_and_played(tmp_path: Path) -> None:
    missing: Script = [Write(answer(404, {"error": "no such path"}))]
    scripts: dict[str, Any] = dict.fromkeys(("/health", "/props", "/slots", "/v1/models"), missing)
    async with ScriptedUpstream(scripts={CHAT: WHOLE, **scripts}) as fu, recording(fu.url, tmp_path) as url:
        live = await posted(url, CHAT, chat())
    player = Player(Cassette.load(tmp_path))
    async with listening(player) as url:
        statuses = [(await seen(url, request_bytes("GET", path))).status for path in STATUS_PATHS]
        assert (await posted(url, CHAT, chat())).body == live.body
        backend = {"name": "gpu0", "url": url, "models": ["m"], "slots": 2}
        async with running_gateway(settings_for(backend=[backend])) as gateway:
            assert text_of(await read_stream(gateway.url, CHAT, chat())) == "a\u2028 ü 😀"
    assert statuses == [200, 404, 404, 404]  # its own health; the rest is no miss, however often it is asked
    assert (player.misses, player.played.total()) == ([], 2)


async def test_keys_are_kept_from_no_part_of_an_exchange(tmp_path: Path) -> None:
    """The keys stand in headers, query and body.

    The upstream echoes them in a header, and in its body, whole and across two reads.
    """
    key, other = "sk-CANARY0123456789abcdefghij", "plain-canary-of-no-known-shape"
    echo = answer(401, f'{{"error":"bad key {key}, {other}"}}'.encode(), f"X-Echo: {other}".encode())
    echo = echo.replace(
        b"HTTP/1.1 401 Status\r\n", b"HTTP/1.1 401 Status\r\nSet-Cookie: s=plain-canary-of-the-upstream\r\n"
    )
    gate = Gate()
    at = echo.index(key.encode()) + len(key) // 2
    halfway = echo.index(b"bad key") + 15
    assert halfway != at
    script: Script = [Write(echo[:halfway]), gate, Write(echo[halfway:])]
    headers = [f"Authorization: Bearer {key}", f"X-Api-Key: {other}", f"Cookie: a=b; c={other}"]
    body = chat(f"my key is {key}", api_key=other, extra={"Api-Key": key}, messages_note=other)
    target = f"{CHAT}?api_key={other}&key={key}"
    request = request_bytes("POST", target, *(line.encode() for line in headers), json=body)
    with logged() as log:
        async with ScriptedUpstream(scripts={CHAT: script}) as fu, recording(fu.url, tmp_path) as url:
            async with await RawClient.connect(url) as client:
                await client.send(request)
                await client.head()
                gate.event.set()
                assert key.encode() in await client.body()  # the client is told what it would be told
            [asked] = fu.generations
            assert (asked.head.get(b"authorization") or b"").endswith(key.encode())
        async with playing(tmp_path) as url:
            again = await seen(url, request)
            missed = await posted(url, CHAT, chat("something else"))
    assert (again.status, len(again.body)) == (401, len(echo.rpartition(b"\r\n\r\n")[2]))
    files = b"".join(files_of(tmp_path).values())
    [kept] = recordings(tmp_path)
    assert len(kept.response.reads) == 2
    for text in (files, kept.response.body, log.text.encode(), missed.body):
        assert b"CANARY" not in text
        assert b"plain-canary" not in text


async def test_the_upstreams_own_key_goes_to_the_upstream_and_nowhere_else(tmp_path: Path) -> None:
    async with ScriptedUpstream(scripts={CHAT: WHOLE}) as fu:
        own_key = Recorder(fu.url, tmp_path, api_key="sk-of-the-upstream")
        async with own_key as recorder, listening(recorder) as url:
            await posted(url, CHAT, chat(), b"authorization: Bearer sg-of-the-client")
        seen_keys = {request.head.get(b"authorization") for request in fu.requests}
    assert seen_keys == {b"Bearer sk-of-the-upstream"}
    assert b"of-the" not in b"".join(files_of(tmp_path).values())


async def test_prompts_are_in_the_cassette_and_not_in_the_log(tmp_path: Path) -> None:
    with logged() as log:
        async with ScriptedUpstream(scripts={CHAT: WHOLE}) as fu, recording(fu.url, tmp_path) as url:
            await posted(url, CHAT, chat("a secret thought"))
        async with playing(tmp_path) as url:
            assert (await posted(url, CHAT, chat("another thought"))).status == 404
    assert "thought" not in log.text
    assert [entry["differs"] for entry in log.of("not recorded")] == [["json.messages[0].content"]]


# -- as a user runs it


async def slotgate(*words: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "slotgate", *words, stdout=pipe, stderr=pipe
    )


async def url_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(20):
        return (await process.stdout.readline()).decode().split()[0]


@pytest.mark.slow
async def test_both_commands_serve_until_they_are_stopped(tmp_path: Path) -> None:
    folder = str(tmp_path / "cassette")
    async with ScriptedUpstream(scripts={CHAT: WHOLE}) as fu:
        process = await slotgate("record", "--upstream", fu.url, "--to", folder, "--port", "0")
        live = await posted(await url_of(process), CHAT, chat())
        process.send_signal(signal.SIGTERM)
        assert (await process.wait(), live.status) == (0, 200)
    process = await slotgate("replay", folder, "--speed", "max", "--port", "0")
    assert (await posted(await url_of(process), CHAT, chat())).body == live.body
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["replay", "FOLDER"], b"there are no recordings in"),
        (["replay", "FOLDER", "--speed", "fast"], b"neither recorded, max nor a number"),
        (["record", "--upstream", "nowhere", "--to", "FOLDER"], b"is not the URL of a server"),
        (["record", "--upstream", "http://h", "--to", "FOLDER", "--api-key-env", "NOT_SET_X"], b"is not set"),
    ],
)
async def test_a_command_that_cannot_be_carried_out_says_why_with_exit_code_2(
    words: list[str], said: bytes, tmp_path: Path
) -> None:
    process = await slotgate(*(str(tmp_path) if word == "FOLDER" else word for word in words))
    _, stderr = await process.communicate()
    assert (process.returncode, said in stderr, b"Traceback" in stderr) == (2, True, False), stderr


async def test_an_upstream_that_is_not_there_is_said_to_be_not_there(tmp_path: Path) -> None:
    with refusing_url() as url, pytest.raises(UpstreamFault, match="cannot be reached"):
        async with Recorder(url, tmp_path, ready_within_s=0):
            raise AssertionError("it began")
    assert files_of(tmp_path) == {}


async def test_an_upstream_that_goes_while_recording_is_502_and_leaves_no_recording(tmp_path: Path) -> None:
    async with ScriptedUpstream() as fu, recording(fu.url, tmp_path) as url:
        fu.stop_listening()
        got = await posted(url, CHAT, chat())
    assert (got.status, b"upstream_unreachable" in got.body) == (502, True)
    assert recordings(tmp_path) == []
    assert len(Cassette.load(tmp_path)) == 4


# -- web pages, and others on the same machine

FOREIGN = {
    "origin": (b"Origin: https://evil.example", b"content-type: application/json"),
    "form": (b"content-type: text/plain",),
    "picture": (b"Sec-Fetch-Site: cross-site", b"content-type: application/json"),
    "link": (b"Sec-Fetch-Site: cross-site", b"Sec-Fetch-Mode: navigate", b"content-type: application/json"),
    "rebound name": (b"Host: evil.example", b"content-type: application/json"),
}


@pytest.mark.parametrize("page", FOREIGN)
async def test_pages_of_other_sites_cannot_use_the_recorder(page: str, tmp_path: Path) -> None:
    fu = ScriptedUpstream(scripts={CHAT: WHOLE})
    async with fu, Recorder(fu.url, tmp_path) as recorder:
        before = recordings(tmp_path)
        async with listening(guarded(recorder, "127.0.0.1")) as url:
            async with await RawClient.connect(url) as client:
                request = request_bytes("POST", CHAT, *FOREIGN[page], json=chat())
                if page == "rebound name":
                    request = request.replace(b"Host: 127.0.0.1", b"X: y", 1)
                await client.send(request)
                await client.head()
                assert client.status == (415 if page == "form" else 403)
            async with await RawClient.connect(url) as client:
                await client.send(request_bytes("POST", CHAT, b"content-type: application/json", json=chat()))
                await client.head()
                assert client.status == 200
                await client.body()
        assert len(fu.generations) == 1
        assert len(recordings(tmp_path)) == len(before) + 1


def modes(folder: Path) -> set[int]:
    """Return the modes of all files, and leave them as a careless program would."""
    found = set()
    for file in list(folder.iterdir()):
        found.add(file.stat().st_mode & 0o777)
        file.chmod(0o644)
        file.with_suffix(".unfinished").write_bytes(b"")
    return found


async def test_only_the_owner_may_read_recordings(tmp_path: Path) -> None:
    """Also a file that was readable by others before, or was left unfinished."""
    fu = ScriptedUpstream(scripts={CHAT: WHOLE})
    async with fu:
        for _ in range(2):
            async with recording(fu.url, tmp_path) as url:
                await posted(url, CHAT, chat())
            assert modes(tmp_path) == {0o600}
