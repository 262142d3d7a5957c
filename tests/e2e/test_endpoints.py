"""Every endpoint keeps the same promises, whatever its protocol. The tests are made from the table of
endpoints.

Other files test these promises for chat in detail. Here they are tested for all endpoints: the release of the
lease, the form of errors, that a cut is no success, that a client that leaves is noticed, and the changes to
requests and answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from slotgate.gateway.api.dialects import NativeDialect
from slotgate.gateway.api.endpoints import ENDPOINTS
from slotgate.gateway.api.request import AddedOptions, RequestParameters
from slotgate.gateway.app.application import build_app
from slotgate.gateway.auth.identity import Identities
from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.http.context import TenantIdentity
from tests.support.answer import WholeResponse, fetch
from tests.support.connection import ReceivedRequest
from tests.support.endpoints import (
    MODEL,
    SAMPLES,
    SLOTLESS,
    SLOTTED,
    STREAMING,
    TEXT,
    UNSTATED,
    WAYS,
    WORDS,
    Way,
    chunks_of,
    models_in,
    says_success,
    speaking,
)
from tests.support.gateway import Gateway, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import END, PING, H, answer, chunked, error_body
from tests.support.peer import AsgiPeer
from tests.support.script import Fin, Gate, Rst, Script, Sleep, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

EACH = pytest.mark.parametrize("way", WAYS, ids=repr)
EACH_WITHOUT_SLOT = pytest.mark.parametrize("way", SLOTLESS, ids=repr)
EACH_STREAM = pytest.mark.parametrize("way", STREAMING, ids=repr)
IN_BOTH_MODES = pytest.mark.parametrize(
    ("way", "stream"), list(speaking()), ids=[f"{way!r} {stream}" for way, stream in speaking()]
)
IN_ALL_WIDE_MODES = pytest.mark.parametrize(
    ("way", "stream"),
    [(way, stream) for way, stream in speaking() if way.sample.wide],
    ids=[f"{way!r} {stream}" for way, stream in speaking() if way.sample.wide],
)
TRUNCATED = "upstream_truncated"
CANARY = "model.gguf"


def upstream_of(way: Way, script: Script, slots: int = 4) -> ScriptedUpstream:
    return ScriptedUpstream(scripts={way.upstream: script}, llama=LlamaLike(slots, model=MODEL))


def serving(*urls: str, **sections: Any) -> Any:  # noqa: ANN401
    return running_gateway(settings_for(*urls, **sections))


def whole(way: Way) -> Script:
    return [Write(answer(200, way.sample.whole))]


def answering(way: Way, *, stream: bool) -> Script:
    return way.script() if stream else whole(way)


async def heard(way: Way, url: str, *headers: bytes, stream: bool, **members: object) -> object:
    """Return a whole success, parsed; for a stream, its chunks."""
    if stream:
        return chunks_of(await way.frames(url, *headers, **members))
    got = await way.ask(url, *headers, **members)
    assert got.status == 200, got
    return orjson.loads(got.body)


def line_of(gateway: Gateway) -> dict[str, Any]:
    [line] = gateway.log.of("request")
    return line


def slots_of(gateway: Gateway) -> Any:  # noqa: ANN401
    return gateway.fleet.backends["gpu0"].pool


def error_of(way: Way, got: WholeResponse) -> dict[str, Any]:
    """Return the error of an answer, in the format of its protocol."""
    if way.path.startswith("/v1/messages"):
        assert got.json["type"] == "error"
        assert got.header(b"request-id") == got.header(b"x-request-id")
        error: dict[str, Any] = got.json["error"]
        assert error["message"]
        return error
    return got.error


def test_every_endpoint_has_a_sample_and_every_sample_an_endpoint() -> None:
    assert SAMPLES.keys() == {endpoint.name for endpoint in ENDPOINTS}
    assert [endpoint.name for endpoint in ENDPOINTS if endpoint.body_format.streams] == [
        name for name, sample in SAMPLES.items() if sample.events
    ]


# -- answers


@EACH
async def test_a_whole_answer_arrives_under_the_public_name(way: Way) -> None:
    fu = upstream_of(way, whole(way))
    async with fu, serving(fu.url) as gateway:
        got = await way.ask(gateway.url, model="m")
        line = line_of(gateway)
        assert fu.generations[0].path == way.upstream
    sample = way.sample
    said = orjson.loads(got.body)
    assert got.status == 200
    assert models_in(said) == ({"m"} if models_in(sample.whole) else set())
    expected = orjson.loads(orjson.dumps(sample.whole))
    if way.endpoint.id_prefix:
        assert said["id"].startswith(way.endpoint.id_prefix)
        assert said["id"] != expected["id"]
    own = ("id", "created", "model")
    if isinstance(said, dict):
        said, expected = ({k: v for k, v in one.items() if k not in own} for one in (said, expected))
        assert said == expected
    counted = tuple(line[name] for name in ("prompt_tokens", "cached_tokens", "completion_tokens"))
    if sample.counts == UNSTATED and way.endpoint.takes_slot:
        assert line["estimated"], line
        assert line["prompt_tokens"] > 0
    else:
        assert counted == sample.counts
    assert (line["status"], line["outcome"], line["model"], line["backend"]) == (200, "ok", "m", "gpu0")


@EACH_STREAM
async def test_a_stream_arrives_whole_under_the_public_name(way: Way) -> None:
    fu = upstream_of(way, way.script())
    async with fu, serving(fu.url) as gateway:
        frames = await way.frames(gateway.url, model="m")
        line = line_of(gateway)
        assert slots_of(gateway).free == 4
    chunks = chunks_of(frames)
    assert way.text(frames).startswith(TEXT)
    assert [says_success(frame.data) for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert models_in(chunks) in ({"m"}, set())
    if way.endpoint.id_prefix:
        ids = {chunk["id"] for chunk in chunks if "id" in chunk} or {chunks[0]["message"]["id"]}
        assert len(ids) == 1
        assert ids.pop().startswith(way.endpoint.id_prefix)
    assert (line["stream"], line["outcome"], line["completion_tokens"]) == (True, "ok", len(WORDS))
    assert line["prompt_tokens"] == way.sample.counts[0]


@IN_BOTH_MODES
async def test_the_backends_own_name_of_the_model_goes_in_and_an_alias_comes_out(
    way: Way, *, stream: bool
) -> None:
    models = [{"name": "m", "aliases": ["gpt/4:o"], "upstream_name": "its-own"}]
    fu = upstream_of(way, answering(way, stream=stream))
    async with fu, serving(fu.url, model=models) as gateway:
        said = await heard(way, gateway.url, stream=stream, model="gpt/4:o")
        assert line_of(gateway)["model"] == "m"
        assert way.members_of(fu.generations[0].body)["model"] == "its-own"
    assert models_in(said) <= {"gpt/4:o"}


@EACH
async def test_a_model_that_is_not_here_is_404_before_any_place_is_taken(way: Way) -> None:
    fu = upstream_of(way, whole(way))
    async with fu, serving(fu.url) as gateway:
        got = await way.ask(gateway.url, model="modèle/x:1")
        assert fu.generations == []
    assert got.status == 404
    assert "modèle/x:1" in error_of(way, got)["message"]


@EACH
async def test_scenario_044_an_answer_has_one_length_and_nothing_of_the_backends_headers(way: Way) -> None:
    theirs = (
        b"Set-Cookie: a=b",
        b"Server: llama.cpp",
        b"Keep-Alive: timeout=5",
        b"Access-Control-Allow-Origin:",
    )
    fu = upstream_of(way, [Write(answer(200, way.sample.whole, *theirs))])
    async with fu, serving(fu.url) as gateway:
        got = await way.ask(gateway.url)
    names = {name for name, _ in got.head.headers}
    assert names == {b"date", b"content-type", b"content-length", b"x-request-id", b"server-timing"} | (
        {b"request-id"} if way.path.startswith("/v1/messages") else set()
    )


@EACH
async def test_the_backend_gets_none_but_the_listed_headers_of_a_request(way: Way) -> None:
    theirs = (
        b"connection: keep-alive, x-private",
        b"keep-alive: timeout=9",
        b"te: trailers",
        b"x-private: 1",
        b"cookie: a=b",
        b"authorization: Bearer sg-canary",
        b"x-conversation-id: c1",
        b"accept-encoding: gzip",
        b"traceparent: 00-1-2-01",
        b"x-request-id: mine",
    )
    fu = upstream_of(way, whole(way))
    async with fu, serving(fu.url) as gateway:
        got = await way.ask(gateway.url, *theirs)
        seen = dict(fu.generations[0].head.headers)
    assert got.status == 200
    wanted = {b"host", b"accept-encoding", b"content-type", b"accept", b"x-request-id", b"traceparent"}
    wanted |= {b"x-slotgate-via"}
    assert seen.keys() == wanted | {b"content-length"}
    assert (seen[b"accept-encoding"], seen[b"x-request-id"]) == (b"identity", b"mine")


# -- the lease


@EACH_STREAM
async def test_the_lease_is_back_before_the_last_frame_is_handed_to_send(way: Way) -> None:
    """The client takes everything but the last frame, whose `send` never returns."""
    fu = upstream_of(way, way.script(), slots=1)
    async with fu, serving(fu.url) as gateway:
        app = build_app(settings_for(fu.url), gateway.parts, Identities(lambda _: None))
        body, lines = way.body(stream=True)
        headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        async with AsgiPeer(app, way.path, headers=headers, body=body) as peer:
            peer.hold(says_success)
            await peer.until(lambda: peer.blocked)
            assert gateway.scheduler.leases == 0
            assert slots_of(gateway).free == 1
            assert not peer.complete


@EACH_STREAM
async def test_the_last_frame_waits_for_the_upstreams_own_end(way: Way) -> None:
    gate = Gate()
    *before, last = way.sample.events
    script: Script = [Write(H + chunked(*before)), Write(chunked(last)), gate, Write(END), Fin()]
    fu = upstream_of(way, script)
    async with fu, serving(fu.url, streaming={"terminal_grace_s": 30}) as gateway:
        reading = asyncio.create_task(way.frames(gateway.url))
        request = await fu.generation()
        await fu.until(lambda: len(request.write_ns) == 2)
        await asyncio.sleep(0.02)
        assert gateway.scheduler.leases == 1
        assert not reading.done()
        gate.event.set()
        assert says_success((await reading)[-1].data)
        assert slots_of(gateway).free == 4


@pytest.mark.parametrize("end", [Stall(), Fin(), Rst()], ids=["silence", "FIN", "RST"])
@EACH_STREAM
async def test_a_success_without_the_upstreams_own_end_is_reported_and_its_slot_verified(
    way: Way, end: Stall | Fin | Rst
) -> None:
    """This holds after the grace period, and if the connection was cut behind the success."""
    fu = upstream_of(way, [Write(H + chunked(*way.sample.events)), Sleep(0.01), end], slots=1)
    async with fu, serving(fu.url, streaming={"terminal_grace_s": 0.05}) as gateway:
        fu.llama.foreign = 1  # /slots goes on to show the slot as busy
        frames = await way.frames(gateway.url)
        assert says_success(frames[-1].data)
        assert len(slots_of(gateway).quarantine) == 1
        await fu.until(lambda: not fu.generations[0].connection.is_open)
        fu.llama.foreign = 0
        await gateway.until(lambda: slots_of(gateway).free == 1)


@pytest.mark.parametrize("way", SLOTTED, ids=repr)
async def test_a_whole_answer_gives_its_lease_back_before_it_is_sent(way: Way) -> None:
    fu = upstream_of(way, whole(way), slots=1)
    async with fu, serving(fu.url) as gateway:
        app = build_app(settings_for(fu.url), gateway.parts, Identities(lambda _: None))
        body, lines = way.body()
        headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        async with AsgiPeer(app, way.path, headers=headers, body=body) as peer:
            peer.hold()
            await peer.until(lambda: peer.blocked)
            assert slots_of(gateway).free == 1


# -- errors


@EACH_STREAM
async def test_an_error_keeps_the_lease_until_the_slot_is_verified_and_is_framed_in_the_protocols_way(
    way: Way,
) -> None:
    """The upstream sends an error, then a success, and does not close."""
    error = way.error_event(500, f"boom in {MODEL}", "server_error")
    last = way.sample.events[-1]
    fu = upstream_of(way, [Write(H + way.head()), Write(chunked(error) + chunked(last)), Stall()], slots=1)
    async with fu, serving(fu.url) as gateway:
        fu.llama.foreign = 1
        frames = await way.frames(gateway.url)
        assert len(slots_of(gateway).quarantine) == 1
        assert slots_of(gateway).free == 0
        await fu.until(lambda: not fu.generations[0].connection.is_open)
        fu.llama.foreign = 0
        await gateway.until(lambda: slots_of(gateway).free == 1)
        assert line_of(gateway)["outcome"] == "error"
    assert way.text(frames) == "a"
    assert "boom in m" in way.error(frames)["message"]


@EACH_STREAM
async def test_scenario_059_an_error_as_first_event_keeps_its_status(way: Way) -> None:
    error = way.error_event(400, f"no such thing in {MODEL}", "invalid_request_error")
    fu = upstream_of(way, [Write(H + chunked(PING, error) + END), Fin()])
    async with fu, serving(fu.url) as gateway:
        got = await way.ask(gateway.url, stream=True)
    assert got.status == 400
    assert error_of(way, got)["message"] == "no such thing in m"


@IN_BOTH_MODES
async def test_scenario_088_an_error_of_the_backend_passes_with_its_status_and_without_its_paths(
    way: Way, *, stream: bool
) -> None:
    said = error_body(400, f"too long for {MODEL}", "exceed_context_size_error", n_ctx=512)
    fu = upstream_of(way, [Write(answer(400, said, b"Connection: close")), Fin()])
    async with fu, serving(fu.url) as gateway:
        got = await way.ask(gateway.url, stream=stream)
        assert slots_of(gateway).free == 4
    error = error_of(way, got)
    assert (got.status, error["message"], error["n_ctx"]) == (400, "too long for m", 512)


@pytest.mark.parametrize("way", WAYS, ids=repr)
async def test_an_overloaded_backend_is_503_and_on_messages_529(way: Way) -> None:
    said = error_body(503, "no slot", "server_error")
    fu = upstream_of(way, [Write(answer(503, said, b"Connection: close")), Fin()])
    async with fu, serving(fu.url) as gateway:
        got = await way.ask(gateway.url)
    is_messages = way.path.startswith("/v1/messages")
    assert got.status == (529 if is_messages else 503)
    assert error_of(way, got)["type"] == "overloaded_error"
    assert got.header(b"x-slotgate-reason") == b"no_backend"
    assert int(got.header(b"retry-after") or 0) >= 1


@EACH_STREAM
async def test_scenario_059_after_a_keep_alive_a_late_error_is_framed_in_the_protocols_way(way: Way) -> None:
    gate = Gate()
    said = answer(503, error_body(503, "no slot", "server_error"), b"Connection: close")
    fu = upstream_of(way, [gate, Write(said), Fin()])
    async with fu, serving(fu.url, streaming={"keepalive_interval_s": 0.05}) as gateway:
        async with await gateway.client() as client:
            await client.send(way.request(stream=True))
            await client.head()
            gate.event.set()
            frames = [frame async for frame in client.frames()]
        assert client.status == 200
    spoken = [frame for frame in frames if frame.data.startswith((b"data:", b"event:"))]
    error = way.error([frame for frame in spoken if b"event: ping" not in frame.data])
    assert error["message"] == "the backend is busy"


ENDS: dict[str, Script] = {
    "final chunk": [Write(END), Fin()],
    "FIN": [Fin()],
    "RST": [Rst()],
    "inside an event": [Write(chunked(b'event: message_stop\ndata: {"type":"mess') + END), Fin()],
}


@pytest.mark.parametrize("end", ENDS)
@EACH_STREAM
async def test_scenario_056_a_stream_that_is_cut_is_an_error_and_never_a_success(way: Way, end: str) -> None:
    fu = upstream_of(way, [Write(H + way.head()), *ENDS[end]])
    async with fu, serving(fu.url) as gateway:
        frames = await way.frames(gateway.url)
        assert len(slots_of(gateway).quarantine) == 1
        assert line_of(gateway)["code"] == TRUNCATED
    assert way.text(frames) == "a"
    assert way.error(frames)["message"] == "upstream closed the stream before it finished"


@EACH_STREAM
async def test_everything_but_the_last_event_is_no_success(way: Way) -> None:
    """Finish reasons, usage and the end of an item do not end a stream."""
    *before, _ = way.sample.events
    fu = upstream_of(way, [Write(H + chunked(*before) + END), Fin()])
    async with fu, serving(fu.url) as gateway:
        frames = await way.frames(gateway.url)
    assert way.text(frames).startswith(TEXT)
    way.error(frames)


@IN_BOTH_MODES
async def test_an_answer_that_is_cut_before_its_beginning_is_502(way: Way, *, stream: bool) -> None:
    cut: Script = [Write(H + chunked(PING)), Fin()] if stream else [Write(answer(200, {"a": 1})[:-2]), Fin()]
    fu = upstream_of(way, cut)
    async with fu, serving(fu.url) as gateway:
        got = await way.ask(gateway.url, stream=stream)
        assert len(fu.generations) == 1
    assert (got.status, got.header(b"x-slotgate-reason")) == (502, TRUNCATED.encode())
    error_of(way, got)


@pytest.mark.parametrize("way", [way for way in STREAMING if way.endpoint.dialect is NativeDialect], ids=repr)
async def test_a_last_chunk_of_which_the_client_chose_the_members_is_a_success(way: Way) -> None:
    """With `response_fields` llama-server leaves out even `stop`, but only from the last chunk."""
    *before, _ = way.sample.events
    chosen = b'data: {"content":"","generation_settings/n_predict":2}\n\n'
    fu = upstream_of(way, [Write(H + chunked(*before, chosen) + END), Fin()])
    async with fu, serving(fu.url) as gateway:
        frames = await way.frames(gateway.url)
        assert slots_of(gateway).free == 4
    assert frames[-1].data == chosen
    assert way.text(frames) == TEXT


# -- clients that leave


def phases(way: Way, *, stream: bool) -> Iterator[Script]:
    """Yield streams that stop before the headers, after them, and midway."""
    yield [Stall()]
    if stream:
        yield [Write(H + chunked(PING)), Stall()]
        yield [Write(H + way.head()), Stall()]
    else:
        yield [Write(answer(200, way.sample.whole)[:-2]), Stall()]


async def leaves(way: Way, script: Script, *, stream: bool) -> None:
    fu = upstream_of(way, script)
    async with fu, serving(fu.url) as gateway, await gateway.client() as client:
        await client.send(way.request(stream=stream))
        request = await fu.generation()
        await fu.until(lambda: len(request.write_ns) >= len(script) - 1)
        client.close()
        await fu.until(lambda: not request.connection.is_open)
        await gateway.until(lambda: gateway.idle)
        await gateway.until(lambda: gateway.log.of("request"))
        assert line_of(gateway)["outcome"] == "client_gone"


@EACH_STREAM
async def test_scenario_001_a_client_that_leaves_its_stream_ends_it_upstream(way: Way) -> None:
    await leaves(way, list(phases(way, stream=True))[2], stream=True)


@pytest.mark.parametrize("phase", [0, 1], ids=["before headers", "after headers"])
@EACH_STREAM
async def test_scenario_002_a_client_that_leaves_before_the_first_event_is_noticed(
    way: Way, phase: int
) -> None:
    await leaves(way, list(phases(way, stream=True))[phase], stream=True)


@pytest.mark.parametrize("phase", [0, 1], ids=["before headers", "midway"])
@EACH
async def test_scenario_003_a_whole_answer_is_not_waited_for_when_its_client_left(
    way: Way, phase: int
) -> None:
    await leaves(way, list(phases(way, stream=False))[phase], stream=False)


@IN_BOTH_MODES
async def test_scenario_004_on_every_route_a_client_that_leaves_the_queue_is_never_sent_upstream(
    way: Way, *, stream: bool
) -> None:
    fu = upstream_of(way, [Stall()], slots=1)
    async with fu, serving(fu.url) as gateway, await gateway.client() as first:
        await first.send(way.request(stream=stream))
        await fu.generation()
        async with await gateway.client() as second:
            await second.send(way.request(stream=stream))
            await gateway.until(lambda: gateway.scheduler.depth == 1)
        await gateway.until(lambda: gateway.scheduler.depth == 0)
        assert len(fu.generations) == 1
        first.close()


# -- keep-alives


@pytest.mark.parametrize("form", ["comment", "chunk", "off"])
@EACH_STREAM
async def test_a_silence_is_broken_in_the_protocols_form(way: Way, form: str) -> None:
    gate = Gate()
    fu = upstream_of(way, [Write(H), gate, *_rest(way)])
    streaming = {"keepalive": form, "keepalive_interval_s": 0.05}
    async with fu, serving(fu.url, streaming=streaming) as gateway:
        async with await gateway.client() as client:
            await client.send(way.request(stream=True))
            request = await fu.generation()
            if form == "off":
                await fu.until(lambda: request.write_ns)
                await asyncio.sleep(0.2)
            else:
                await client.head()
            gate.event.set()
            if form == "off":
                await client.head()
            frames = [frame async for frame in client.frames()]
    assert frames[0].data.startswith(_first_of(way, form)), frames
    assert way.text(frames).startswith(TEXT)
    assert says_success(frames[-1].data)


def _rest(way: Way) -> Script:
    *before, last = way.sample.events
    return [Write(chunked(*before)), Write(chunked(last) + END), Fin()]


def _first_of(way: Way, form: str) -> bytes:
    name = way.endpoint.name
    if form == "off":
        return b"data: {" if way.sample.events[0].startswith(b"data") else b"event: "
    if name == "messages":
        return b'event: ping\ndata: {"type": "ping"}\n\n'
    if form == "chunk" and name == "chat":
        return b'data: {"choices":[{"index":0,"delta":{"role":"assistant"'
    if form == "chunk" and name == "completions":
        return b'data: {"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null}]'
    return b": keep-alive\n\n"


# -- counts, and changes on the way


@IN_ALL_WIDE_MODES
async def test_a_wide_request_holds_as_many_slots_as_it_uses(way: Way, *, stream: bool) -> None:
    fu = upstream_of(way, [Stall()])
    async with fu, serving(fu.url) as gateway:
        async with await gateway.client() as client:
            await client.send(way.request(stream=stream, **(way.sample.wide or {})))
            await fu.generation()
            assert slots_of(gateway).leased == 3
        await gateway.until(lambda: slots_of(gateway).free == 4)


COUNTED_ALONE = [way for way in STREAMING if way.sample.wide and way.endpoint.dialect.done == b""]


@pytest.mark.parametrize("way", COUNTED_ALONE, ids=repr)
async def test_a_stream_of_several_parts_ends_with_the_last_of_them(way: Way) -> None:
    """Every part of these streams states its own end, and no event states the end of all parts."""
    last = chunked(way.sample.events[-1])
    fu = upstream_of(way, [Write(H + way.head() + last), Write(last), Write(last + END), Fin()])
    async with fu, serving(fu.url) as gateway:
        frames = await way.frames(gateway.url, **(way.sample.wide or {}))
        assert slots_of(gateway).free == 4
    assert [says_success(frame.data) for frame in frames[-4:]] == [False, True, True, True]


@pytest.mark.parametrize("way", COUNTED_ALONE, ids=repr)
async def test_a_stream_of_which_a_part_did_not_end_is_an_error(way: Way) -> None:
    last = chunked(way.sample.events[-1])
    fu = upstream_of(way, [Write(H + way.head() + last + last + END), Fin()])
    async with fu, serving(fu.url) as gateway:
        frames = await way.frames(gateway.url, **(way.sample.wide or {}))
        assert line_of(gateway)["code"] == TRUNCATED
    assert not says_success(frames[-1].data)


COUNTED = [way for way in SLOTTED if way.endpoint.body_format.count_names]


@pytest.mark.parametrize("name", ["n", "n_cmpl"])
@pytest.mark.parametrize("way", COUNTED, ids=repr)
async def test_more_choices_than_slots_are_400(way: Way, name: str) -> None:
    fu = upstream_of(way, whole(way))
    async with fu, serving(fu.url) as gateway:
        got = await way.ask(gateway.url, **{name: 5})
        assert fu.generations == []
    assert (got.status, got.error["param"]) == (400, "n")


LIMITED = [way for way in SLOTTED if way.endpoint.body_format.limit_names]
OWN_LIMIT = {
    "chat": "max_tokens",
    "completions": "max_tokens",
    "responses": "max_output_tokens",
    "messages": "max_tokens",
    "native": "n_predict",
    "infill": "n_predict",
    "transcriptions": "max_tokens",
}


def tenant_with(**limits: object) -> dict[str, Any]:
    return {"tenant": [{"name": "t", "key_hashes": [hash_key(b"sg-t")], **limits}]}


async def sent(way: Way, sections: dict[str, Any], **members: object) -> dict[str, Any]:
    """Return the body that the backend gets for a request of the tenant."""
    fu = upstream_of(way, whole(way))
    async with fu, serving(fu.url, **sections) as gateway:
        got = await way.ask(gateway.url, b"authorization: Bearer sg-t", **members)
        assert got.status == 200, got
        return way.members_of(fu.generations[0].body)


@pytest.mark.parametrize("way", LIMITED, ids=repr)
async def test_scenario_014_the_tenants_limit_of_tokens_is_set_in_the_protocols_own_member(way: Way) -> None:
    own = OWN_LIMIT[way.endpoint.name]
    limits = tenant_with(max_tokens_default=20, max_tokens_limit=50)
    others = dict.fromkeys(way.endpoint.body_format.limit_names)
    asked: list[tuple[dict[str, int], str, int]] = [
        ({}, own, 20),
        ({own: 30}, own, 30),
        ({own: 500}, own, 50),
    ]
    asked += [({own: 30, name: 500}, name, 50) for name in others]
    for members, name, expected in asked:
        assert int((await sent(way, limits, **{**others, **members}))[name]) == expected
    if "n_predict" in others:
        assert (await sent(way, limits, **{**others, "n_predict": -1}))["n_predict"] == 20


@pytest.mark.parametrize("way", [way for way in LIMITED if not way.endpoint.multipart], ids=repr)
@pytest.mark.parametrize("asked", [{}, {"cache_prompt": True}, {"cache_prompt": None}])
def test_a_tenant_whose_cache_is_its_own_never_reads_the_prompt_cache(
    way: Way, asked: dict[str, Any]
) -> None:
    body = way.sample.body | asked
    request = RequestParameters.from_members(body, way.endpoint.body_format)
    isolated = TenantIdentity("t", isolate_cache=True)
    assert request.changes(body, isolated, None, AddedOptions())["cache_prompt"] == b"false"
    assert "cache_prompt" not in request.changes(body, TenantIdentity("t"), None, AddedOptions())


@pytest.mark.parametrize("way", WAYS, ids=repr)
async def test_a_client_cannot_choose_its_slot(way: Way) -> None:
    """This holds for all bodies but forms, in which the member has no effect because all values are texts."""
    if not way.endpoint.multipart:
        assert "id_slot" not in await sent(way, tenant_with(), id_slot=2)
        assert (await sent(way, tenant_with(allow_id_slot=True), id_slot=2))["id_slot"] == 2


@pytest.mark.parametrize("way", WAYS, ids=repr)
async def test_members_of_unknown_names_pass(way: Way) -> None:
    assert (await sent(way, tenant_with(), lora="x", x_unknown="é"))["lora"] == "x"


# -- ending a request from outside

KEY = b"x-slotgate-supersede: editor"


async def until_ended(gateway: Gateway, requests: int) -> None:
    await gateway.until(lambda: len(gateway.log.of("request")) == requests)


@IN_BOTH_MODES
async def test_a_queued_request_that_is_superseded_is_409(way: Way, *, stream: bool) -> None:
    gate = Gate()
    fu = upstream_of(way, [gate, *answering(way, stream=stream)], slots=1)
    async with fu, serving(fu.url) as gateway:
        running = asyncio.create_task(heard(way, gateway.url, stream=stream))
        await fu.generation()
        queued = asyncio.create_task(way.ask(gateway.url, KEY, stream=stream))
        await gateway.until(lambda: gateway.scheduler.depth == 1)
        latest = asyncio.create_task(heard(way, gateway.url, KEY, stream=stream))
        got = await queued
        gate.event.set()
        await asyncio.gather(running, latest)
        assert len(fu.generations) == 2
    assert (got.status, got.header(b"x-slotgate-reason")) == (409, b"superseded")
    assert error_of(way, got)["type"] == "invalid_request_error"


@IN_BOTH_MODES
async def test_a_running_request_that_is_superseded_is_ended_upstream_and_gets_an_error(
    way: Way, *, stream: bool
) -> None:
    held: Script = [Write(H + way.head()), Stall()] if stream else [Stall()]
    scripts = iter([held, answering(way, stream=stream)])
    fu = ScriptedUpstream(scripts={way.upstream: lambda _: next(scripts)}, llama=LlamaLike(2, model=MODEL))
    async with fu, serving(fu.url) as gateway:
        if stream:
            first = asyncio.create_task(way.frames(gateway.url, KEY))
            await gateway.until(lambda: any(lease.delivered for lease in slots_of(gateway).leases))
        else:
            whole_one = asyncio.create_task(way.ask(gateway.url, KEY, stream=False))
            await fu.generation()
        await heard(way, gateway.url, KEY, stream=stream)
        await fu.until(lambda: not fu.generations[0].connection.is_open)
        if stream:
            assert "a newer request" in way.error(await first)["message"]
        else:
            assert (await whole_one).status == 409


@pytest.mark.slow
async def test_another_tenant_and_another_key_supersede_nothing() -> None:
    [way] = [way for way in WAYS if way.path == "/infill"]
    tenants = [{"name": name, "key_hashes": [hash_key(f"sg-{name}")]} for name in "ab"]
    gate = Gate()
    fu = upstream_of(way, [gate, *whole(way)])
    async with fu, serving(fu.url, tenant=tenants) as gateway:
        asking = [
            asyncio.create_task(way.ask(gateway.url, b"authorization: Bearer sg-" + who, key))
            for who, key in ((b"a", KEY), (b"b", KEY), (b"a", KEY + b"2"), (b"a", b"x-other: 1"))
        ]
        await fu.generation(3)
        gate.event.set()
        assert [(await one).status for one in asking] == [200] * 4


@pytest.mark.parametrize("stream", [True, False])
async def test_only_the_last_request_of_an_editors_burst_completes_on_one_slot(*, stream: bool) -> None:
    """Each key press asks anew. The backend gets the first request, which had the slot, and the last one."""
    [way] = [way for way in WAYS if way.path == "/infill"]
    held: Script = [Write(H + way.head()), Stall()] if stream else [Stall()]
    scripts = iter([held, answering(way, stream=stream)])
    fu = ScriptedUpstream(scripts={way.upstream: lambda _: next(scripts)}, llama=LlamaLike(1, model=MODEL))
    async with fu, serving(fu.url) as gateway:
        clients = [await gateway.client() for _ in range(10)]
        for number, client in enumerate(clients):
            await client.send(way.request(KEY, stream=stream, input_prefix=f"def {number}"))
            if number == 0:
                await fu.generation()
                fu.llama.foreign = 1  # /slots still shows it busy with the first request
            if number == 0 and stream:
                await gateway.until(lambda: any(lease.delivered for lease in slots_of(gateway).leases))
            await until_ended(gateway, number)
        fu.llama.foreign = 0
        answers = []
        for client in clients:
            await client.head(within=10)
            answers.append((client.status, await client.body(within=10)))
            client.close()
        prefixes = [request.json()["input_prefix"] for request in fu.generations]
    assert [status for status, _ in answers] == [200 if stream else 409, *[409] * 8, 200]
    ended = b"a newer request with the same key"
    assert [ended in said for _, said in answers] == [True] * 9 + [False]
    assert answers[-1][1].count(b'"stop":true') == 1
    assert prefixes == ["def 0", "def 9"]


@IN_BOTH_MODES
async def test_scenario_014_a_tenant_cancels_a_request_of_its_own_by_its_id(
    way: Way, *, stream: bool
) -> None:
    fu = upstream_of(way, [Stall()])
    async with fu, serving(fu.url) as gateway:
        asking = asyncio.create_task(way.ask(gateway.url, b"x-request-id: mine", stream=stream))
        await fu.generation()
        done = await fetch(gateway.url, "POST", "/v1/requests/mine/cancel", json={})
        got = await asking
        await fu.until(lambda: not fu.generations[0].connection.is_open)
        again = await fetch(gateway.url, "POST", "/v1/requests/mine/cancel", json={})
    assert (done.status, done.json) == (200, {"id": "mine", "cancelled": 1})
    assert (got.status, got.header(b"x-slotgate-reason")) == (409, b"cancelled")
    assert (again.status, again.error["code"]) == (404, "request_not_found")


@EACH_STREAM
async def test_a_cancelled_stream_ends_with_an_error_in_the_protocols_form(way: Way) -> None:
    fu = upstream_of(way, [Write(H + way.head()), Stall()])
    async with fu, serving(fu.url) as gateway:
        reading = asyncio.create_task(way.frames(gateway.url, b"x-request-id: mine"))
        await gateway.until(lambda: any(lease.delivered for lease in slots_of(gateway).leases))
        await fetch(gateway.url, "POST", "/v1/requests/mine/cancel", json={})
        frames = await reading
    assert way.error(frames)["message"] == "the request was cancelled"


async def test_a_request_of_another_tenant_cannot_be_cancelled_and_is_not_there() -> None:
    way = STREAMING[0]
    tenants = [{"name": name, "key_hashes": [hash_key(f"sg-{name}")]} for name in "ab"]
    gate = Gate()
    fu = upstream_of(way, [gate, *whole(way)])
    async with fu, serving(fu.url, tenant=tenants) as gateway:
        owner, other = b"authorization: Bearer sg-a", b"authorization: Bearer sg-b"
        asking = asyncio.create_task(way.ask(gateway.url, owner, b"x-request-id: mine"))
        await fu.generation()
        got = await fetch(gateway.url, "POST", "/v1/requests/mine/cancel", other, json={})
        gate.event.set()
        assert (await asking).status == 200
    assert (got.status, got.error["code"]) == (404, "request_not_found")


async def test_a_cancellation_needs_no_body() -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu.url) as gateway:
        got = await fetch(gateway.url, "POST", "/v1/requests/mine/cancel")
    assert got.status == 404


# -- endpoints without a slot


@EACH_WITHOUT_SLOT
async def test_scenario_027_a_slot_free_request_is_answered_while_all_slots_are_taken(way: Way) -> None:
    def scripted(request: ReceivedRequest) -> Script:
        return [Stall()] if request.path == STREAMING[0].upstream else whole(way)

    fu = ScriptedUpstream(scripted, llama=LlamaLike(1, model=MODEL))
    async with fu, serving(fu.url, admission={"max_queue": 1}) as gateway:
        async with await gateway.client() as busy, await gateway.client() as queued:
            for client in (busy, queued):
                await client.send(STREAMING[0].request(stream=True))
            await fu.generation()
            await gateway.until(lambda: gateway.scheduler.depth == 1)
            got = await way.ask(gateway.url)
            models = await fetch(gateway.url, "GET", "/v1/models")
            assert slots_of(gateway).leased == 1
    assert (got.status, models.status) == (200, 200)


SHOWN = {"expose_props": "/props", "expose_slots": "/slots"}


@pytest.mark.parametrize("path", SHOWN.values())
async def test_scenario_116_endpoints_that_show_the_backend_are_off_by_default(path: str) -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu.url) as gateway:
        for method in ("GET", "POST"):
            got = await fetch(gateway.url, method, path, json={} if method == "POST" else None)
            assert (got.status, got.error["code"]) == (404, "unknown_path")


@pytest.mark.parametrize(("switch", "path"), SHOWN.items())
async def test_endpoints_that_show_the_backend_are_read_only_and_ask_it_nothing(
    switch: str, path: str
) -> None:
    fu = upstream_of(STREAMING[0], [Stall()], slots=2)
    async with fu, serving(fu.url, server={"port": 0, switch: True}) as gateway:
        async with await gateway.client() as client:
            await client.send(STREAMING[0].request(stream=True))
            await fu.generation()
            asked = len([request for request in fu.requests if request.path == "/slots"])
            got = await fetch(gateway.url, "GET", f"{path}?model=m")
            unknown = await fetch(gateway.url, "GET", f"{path}?model=other")
            refused = await fetch(gateway.url, "POST", path, json={})
            assert len([request for request in fu.requests if request.path == "/slots"]) == asked
    assert (got.status, unknown.status, refused.status) == (200, 404, 405)
    assert b"/home/somebody" not in got.body
    said = orjson.loads(got.body)
    if path == "/slots":
        assert [slot["is_processing"] for slot in said] == [True, False]
    else:
        assert (said["total_slots"], said["model_path"]) == (2, "m")
