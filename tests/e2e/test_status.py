"""Errors reach the client as a status as long as possible, and after that as one framed error."""

from __future__ import annotations

import os

import orjson
import pytest

from slotgate.gateway.backends.backend import BackendState
from tests.support.answer import fetch
from tests.support.client import read_stream
from tests.support.gateway import CHAT, ask, chat, error_in, running_gateway, settings_for, text_of
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, END, PING, STOP, H, T, answer, chunked, error_body
from tests.support.script import Fin, Flood, Script, Sleep, Stall, Write, stream
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

TOO_LONG = "request (6009 tokens) exceeds the available context size (4096 tokens), try increasing it"
ERRORS = {
    400: error_body(400, TOO_LONG, "exceed_context_size_error", n_prompt_tokens=6009, n_ctx=4096),
    404: error_body(404, "File Not Found", "not_found_error"),
    413: error_body(413, "too large", "invalid_request_error"),
    422: error_body(422, "unprocessable", "invalid_request_error", param="messages"),
    500: error_body(500, "Context size has been exceeded.", "server_error"),
    501: error_body(501, "This server does not support it", "not_supported_error"),
}
"""Errors as llama-server writes them: `code` is the status, and some have fields of their own."""
QUICK = {"keepalive_interval_s": 0.1}

either = pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])


def event(error: bytes) -> bytes:
    return b"data: " + error + b"\n\n"


@either
@pytest.mark.parametrize("status", ERRORS)
async def test_a_backend_error_keeps_its_status_and_fields(status: int, *, streaming: bool) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(answer(status, ERRORS[status]))]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=streaming)
        assert got.status == status
        assert got.error == orjson.loads(ERRORS[status])["error"]
        assert len(fu.generations) == 1
        assert gateway.fleet.backends["gpu0"].pool.free == 4


@either
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"no such route", "no such route"),
        (b'"just a text"', "just a text"),
        (b'{"error":"as text"}', "as text"),
        (b'{"message":"bare","type":"server_error"}', "bare"),
        (b'["a list"]', "['a list']"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", "the backend gave no reason"),
        (b'{"error":{"message":7,"type":null}}', "the backend reported an error"),
        (b'{"error":' + b'{"a":' * 300 + b"1" + b"}" * 301, "the backend reported an error"),
    ],
)
async def test_an_error_body_in_any_shape_becomes_an_openai_error(
    body: bytes, message: str, *, streaming: bool
) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(answer(400, body, content_type=b"text/plain"))]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=streaming)
    assert got.status == 400
    assert got.error["message"] == message


@either
@pytest.mark.parametrize("code", ["line\r\nset-cookie: a=b", "für", "x" * 5000, ""])
async def test_a_backend_code_that_is_no_valid_header_value_is_only_in_the_body(
    code: str, *, streaming: bool
) -> None:
    body = orjson.dumps({"error": {"code": code, "message": "no", "type": "server_error"}})
    fu = ScriptedUpstream(scripts={CHAT: [Write(answer(500, body))]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=streaming)
    assert got.status == 500
    assert got.error["code"] == code
    assert got.header(b"x-slotgate-reason") == b"upstream_error"
    assert got.header(b"set-cookie") is None


@pytest.mark.parametrize("status", ERRORS)
async def test_an_error_as_first_event_keeps_its_real_status(status: int) -> None:
    """llama-server has sent 200 and a ping by then."""
    fu = ScriptedUpstream(scripts={CHAT: stream(PING, event(ERRORS[status]))})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url)
    assert got.status == status
    assert got.error == orjson.loads(ERRORS[status])["error"]


async def test_the_error_field_of_old_builds_is_an_error_and_no_empty_success() -> None:
    fu = ScriptedUpstream(scripts={CHAT: stream(b"error: " + error_of(400) + b"\n\n", DONE)})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url)
    assert got.status == 400
    assert got.error == orjson.loads(error_of(400))


async def test_the_error_field_of_old_builds_mid_stream_is_one_framed_error() -> None:
    fu = ScriptedUpstream(scripts={CHAT: stream(T("a"), b"error: " + error_of(400) + b"\n\n", DONE)})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat())
    assert error_in(frames) == orjson.loads(error_of(400))
    assert text_of(frames) == "a"


@pytest.mark.parametrize("tail", [b"", DONE, T("late") + STOP + DONE], ids=["end", "done", "more"])
async def test_an_error_mid_stream_is_one_framed_error_and_the_end_of_the_body(tail: bytes) -> None:
    script: Script = [Write(H + chunked(T("a"), event(ERRORS[500]), tail) + END), Fin()]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat())
    assert error_in(frames) == orjson.loads(ERRORS[500])["error"]
    assert text_of(frames) == "a"


@pytest.mark.parametrize("form", ["comment", "chunk"])
@pytest.mark.parametrize("as_event", [True, False], ids=["as first event", "as answer"])
async def test_scenario_059_after_an_early_commit_a_late_400_is_one_framed_error(
    form: str, *, as_event: bool
) -> None:
    late: Script = [Write(H), Sleep(0.25), Write(chunked(event(ERRORS[400])) + END), Fin()]
    script: Script = late if as_event else [Sleep(0.25), Write(answer(400, ERRORS[400]))]
    fu = ScriptedUpstream(scripts={CHAT: script})
    keepalive = {**QUICK, "keepalive": form}
    async with fu, running_gateway(settings_for(fu.url, streaming=keepalive)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat())
    assert len(frames) > 1
    assert error_in(frames) == orjson.loads(ERRORS[400])["error"]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("as_event", [False, True], ids=["as answer", "as first event"])
async def test_a_backend_that_refuses_our_key_is_502_and_the_key_is_never_shown(
    status: int, monkeypatch: pytest.MonkeyPatch, *, streaming: bool, as_event: bool
) -> None:
    canary = "sk-CANARY-of-the-backend"
    monkeypatch.setenv("LLAMA_KEY", canary)
    error = error_body(status, f"Invalid API Key {canary}", "authentication_error")
    script: Script = stream(event(error)) if as_event else [Write(answer(status, error))]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu:
        backend = {"name": "gpu0", "url": fu.url, "models": ["m"], "api_key_env": "LLAMA_KEY"}
        async with running_gateway(settings_for(backend=[backend], environ=os.environ)) as gateway:
            got = await ask(gateway.url, stream=streaming)
            assert canary.encode() in fu.generations[0].raw
            assert canary not in gateway.log.text
    if as_event and not streaming:
        assert got.error["code"] == "upstream_broken"
    else:
        assert (got.status, got.error["code"]) == (502, "upstream_auth")
    assert got.error["type"] == "upstream_error"
    assert canary.encode() not in got.body


@either
@pytest.mark.parametrize("status", [302, 405, 502, 504])
async def test_an_unexpected_status_is_a_broken_backend(status: int, *, streaming: bool) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(answer(status, error_body(status, "?", "odd")))]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=streaming)
    assert (got.status, got.error["code"]) == (502, "upstream_broken")


DEEP = b'{"choices":[],"model":"/srv/m.gguf","x":' + b"[" * 300 + b"]" * 300 + b"}"


@pytest.mark.parametrize("said", [b"hello", b"[1]", b"", DEEP], ids=["text", "list", "nothing", "deep"])
async def test_a_whole_answer_that_makes_no_sense_is_a_broken_backend(said: bytes) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(answer(200, said))]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=False)
    assert (got.status, got.error["code"]) == (502, "upstream_broken")


async def test_a_whole_answer_without_end_is_a_broken_backend_and_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slotgate.gateway.forwarding.fetch.MAX_ANSWER_BYTES", 100_000)
    head = H.replace(b"text/event-stream", b"application/json")
    fu = ScriptedUpstream(scripts={CHAT: [Write(head), Flood(50_000_000)]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=False)
        assert (got.status, got.error["code"]) == (502, "upstream_broken")
        assert await fu.generation()
        await fu.until(lambda: not fu.generations[0].connection.is_open)
        assert gateway.fleet.backends["gpu0"].pool.leased == 0


@either
async def test_an_endless_error_body_is_answered_and_its_slot_is_released(
    monkeypatch: pytest.MonkeyPatch, *, streaming: bool
) -> None:
    monkeypatch.setattr("slotgate.gateway.forwarding.fetch.MAX_ANSWER_BYTES", 1_000_000)
    head = H.replace(b"200 OK", b"500 Error").replace(b"text/event-stream", b"application/json")
    fu = ScriptedUpstream(scripts={CHAT: [Write(head), Flood(100_000_000)]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=streaming)
        assert got.status == (500 if streaming else 502)
        await fu.until(lambda: not fu.generations[0].connection.is_open)
        assert gateway.fleet.backends["gpu0"].pool.leased == 0


async def test_a_chunk_that_cannot_be_written_again_is_a_broken_backend() -> None:
    fu = ScriptedUpstream(scripts={CHAT: stream(T("a"), event(DEEP), STOP, DONE)})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat())
    assert error_in(frames)["code"] == "upstream_broken"
    assert text_of(frames) == "a"


@either
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("as_event", [False, True], ids=["as answer", "as first event"])
async def test_a_busy_backend_is_503_no_backend(status: int, *, streaming: bool, as_event: bool) -> None:
    error = error_body(status, "Slot unavailable", "server_busy")
    script: Script = stream(event(error)) if as_event and streaming else [Write(answer(status, error))]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=streaming)
        assert len(fu.generations) == 1
    assert (got.status, got.error["code"]) == (503, "no_backend")


@either
async def test_a_backend_that_refuses_connections_is_502_upstream_unreachable(*, streaming: bool) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        fu.stop_listening()
        got = await ask(gateway.url, stream=streaming)
        assert gateway.fleet.backends["gpu0"].pool.leased == 0
        assert not gateway.fleet.backends["gpu0"].pool.quarantine.slots
    assert (got.status, got.error["code"]) == (502, "upstream_unreachable")
    assert got.error["type"] == "upstream_error"


# Refusals by admission


@either
async def test_a_full_queue_is_429_with_a_reason_and_retry_after(*, streaming: bool) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    fu.llama.total_slots = 1
    limits = {"max_queue": 1}
    async with fu, running_gateway(settings_for(fu.url, admission=limits)) as gateway:
        async with await gateway.client() as running, await gateway.client() as waiting:
            await running.post(CHAT, chat())
            await waiting.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            await waiting.send(b"Content-Type: application/json\r\nContent-Length: 59\r\n\r\n")
            await waiting.send(orjson.dumps(chat()).ljust(59))
            await gateway.until(lambda: gateway.scheduler.depth == 1)
            got = await ask(gateway.url, stream=streaming)
    assert (got.status, got.error["code"]) == (429, "queue_full")
    assert got.error["type"] == "rate_limit_error"
    assert got.header(b"x-slotgate-reason") == b"queue_full"
    assert int(got.header(b"retry-after") or 0) >= 1


@either
async def test_a_wait_that_runs_out_is_503_queue_timeout(*, streaming: bool) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    fu.llama.total_slots = 1
    limits = {"queue_timeout_s": 0.2}
    async with fu, running_gateway(settings_for(fu.url, admission=limits)) as gateway:
        async with await gateway.client() as running:
            await running.post(CHAT, chat())
            got = await ask(gateway.url, stream=streaming)
    assert (got.status, got.error["code"]) == (503, "queue_timeout")
    assert got.error["message"] == "no slot became free in time"
    assert got.error["type"] == "overloaded_error"
    assert got.header(b"x-slotgate-reason") == b"queue_timeout"
    assert int(got.header(b"retry-after") or 0) >= 1


@pytest.mark.slow
@either
async def test_a_wait_for_a_backend_that_stays_down_does_not_blame_its_slots(*, streaming: bool) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, admission={"queue_timeout_s": 0.2})) as gateway:
        fu.stop_listening()
        await gateway.until(lambda: gateway.fleet.backends["gpu0"].state is BackendState.UNREACHABLE)
        got = await ask(gateway.url, stream=streaming)
    assert (got.status, got.error["code"]) == (503, "queue_timeout")
    assert got.error["message"].startswith("no backend that serves the model takes requests now (gpu0: ")


async def test_a_wait_that_runs_out_after_a_keep_alive_is_one_framed_error() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    fu.llama.total_slots = 1
    limits = {"queue_timeout_s": 0.25}
    async with fu, running_gateway(settings_for(fu.url, admission=limits, streaming=QUICK)) as gateway:
        async with await gateway.client() as running:
            await running.post(CHAT, chat())
            frames = await read_stream(gateway.url, CHAT, chat())
    assert error_in(frames)["code"] == "queue_timeout"


# Faults of the request


@either
async def test_an_unknown_model_is_404_and_names_it(*, streaming: bool) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=streaming, model="gpt-9")
    assert (got.status, got.error["code"], got.error["param"]) == (404, "model_not_found", "model")
    assert "gpt-9" in got.error["message"]
    assert not fu.generations


async def test_a_request_may_omit_the_only_model_and_the_answer_names_it() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=False)
    assert got.json["model"] == "m"


async def test_a_request_must_name_one_of_several_models() -> None:
    fu = ScriptedUpstream()
    async with fu:
        backend = {"name": "gpu0", "url": fu.url, "models": ["m0", "m1"]}
        async with running_gateway(settings_for(backend=[backend])) as gateway:
            got = await ask(gateway.url)
    assert (got.status, got.error["code"], got.error["param"]) == (400, "invalid_request", "model")
    assert "m0, m1" in got.error["message"]
    assert not fu.generations


@either
async def test_more_choices_than_slots_are_400(*, streaming: bool) -> None:
    fu = ScriptedUpstream(llama=LlamaLike(2))
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=streaming, n=3)
        assert not fu.generations
        enough = await ask(gateway.url, stream=streaming, n=2)
    assert (got.status, got.error["param"]) == (400, "n")
    assert "2" in got.error["message"]
    assert enough.status == 200


# Paths of the backend's machine

HOME = "/home/bob/models/x.gguf"


def leaking(model: str) -> dict[str, bytes]:
    """Backend answers that could carry a path to the client."""
    error = error_body(500, f"failed to load {model}; see {model}.log", "server_error", file=model)
    return {
        "error": answer(500, error),
        "error as text": answer(400, f"cannot open '{model}'".encode()),
        "first event": b"".join(step.data for step in stream(event(error)) if isinstance(step, Write)),
        "mid-stream": H + chunked(T("a"), event(error)) + END,
        "chunks": H + chunked(T("a").replace(b'"m"', orjson.dumps(model)), STOP, DONE) + END,
    }


@pytest.mark.parametrize("said", leaking(HOME))
@pytest.mark.parametrize(
    ("path", "known"),
    [(HOME, True), (HOME, False), ("/home/bob/blobs/sha256-0", True), ('/home/bob/a "b" é.gguf', True)],
    ids=["its model", "another model", "a blob", "an odd name"],
)
async def test_scenario_088_a_path_of_the_backend_never_reaches_the_client(
    said: str, path: str, *, known: bool
) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(leaking(path)[said]), Fin()]})
    fu.llama.model = path if known else "/srv/models/tiny.gguf"
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url)
    assert got.body
    assert b"/home" not in got.body
    assert b"bob" not in got.body


async def test_model_lists_and_whole_answers_contain_no_path() -> None:
    fu = ScriptedUpstream(llama=LlamaLike(model=HOME))
    async with fu:
        backend = {"name": "gpu0", "url": fu.url}
        async with running_gateway(settings_for(backend=[backend])) as gateway:
            answers = [await fetch(gateway.url, "GET", path) for path in ("/v1/models", "/v1/models/x")]
            answers.append(await ask(gateway.url, stream=False))
            answers.append(await ask(gateway.url))
            assert fu.generations[0].json()["model"] == HOME
    assert [got.status for got in answers] == [200] * 4
    assert [entry["id"] for entry in answers[0].json["data"]] == ["x"]
    assert not [got for got in answers if b"/home" in got.body]


def error_of(status: int) -> bytes:
    """Return the error object without its envelope."""
    return orjson.dumps(orjson.loads(ERRORS[status])["error"])


def test_every_leaking_answer_contains_the_path() -> None:
    assert all(HOME.encode() in script for script in leaking(HOME).values())
