"""A request is sent again only if the first backend certainly has not begun it, and only once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.support.client import read_stream
from tests.support.connection import ReceivedRequest
from tests.support.gateway import CHAT, Gateway, ask, chat, error_in, running_gateway, settings_for, text_of
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, H, T, answer, chunked, error_body
from tests.support.script import Fin, Rst, Script, Sleep, Write, stream
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

LOADING = answer(503, error_body(503, "Loading model", "unavailable_error"))
QUICK = {"keepalive_interval_s": 0.1}
either = pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])


def two(first: Script) -> tuple[ScriptedUpstream, ScriptedUpstream]:
    """Run two backends. One plays this script, and is asked first because it has more slots."""
    return ScriptedUpstream(scripts={CHAT: first}, llama=LlamaLike(8)), ScriptedUpstream(llama=LlamaLike(2))


async def both_are_ready(gateway: Gateway) -> None:
    await gateway.until(lambda: all(b.pool.admitting for b in gateway.fleet.backends.values()))


@pytest.mark.parametrize("end", ["RST", "error"])
async def test_scenario_077_a_request_whose_work_has_begun_is_never_sent_again(end: str) -> None:
    loading = b"data: " + error_body(503, "Loading model", "unavailable_error") + b"\n\n"
    script: Script = [Write(H + chunked(T("A"))), Rst()] if end == "RST" else stream(T("A"), loading)
    first, second = two(script)
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_ready(gateway)
        frames = await read_stream(gateway.url, CHAT, chat())
    assert text_of(frames) == "A"
    assert error_in(frames)
    assert (len(first.generations), len(second.generations)) == (1, 0)


@either
@pytest.mark.parametrize(
    ("script", "status"),
    [
        ([Rst()], 502),
        ([Write(answer(503, error_body(503, "Slot unavailable", "server_busy")))], 503),
        ([Write(answer(500, error_body(500, "boom", "server_error")))], 500),
        ([Write(answer(400, error_body(400, "no", "invalid_request_error")))], 400),
        ([Write(answer(401, error_body(401, "no", "authentication_error")))], 502),
    ],
    ids=["RST before headers", "503", "500", "400", "401"],
)
async def test_scenario_078_an_answer_is_an_answer_and_a_lost_one_may_have_been_begun(
    script: Script, status: int, *, streaming: bool
) -> None:
    first, second = two(script)
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_ready(gateway)
        got = await ask(gateway.url, stream=streaming)
    assert got.status == status
    assert got.error
    assert (len(first.generations), len(second.generations)) == (1, 0)
    if status == 503:
        assert int(got.header(b"retry-after") or 0) >= 1


@either
async def test_scenario_078_a_refused_connection_is_tried_once_more_elsewhere(*, streaming: bool) -> None:
    first, second = two([])
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_ready(gateway)
        first.stop_listening()
        got = await ask(gateway.url, stream=streaming)
    assert got.status == 200
    assert (len(first.generations), len(second.generations)) == (0, 1)


@either
async def test_scenario_078_two_refused_connections_are_the_end_of_it(*, streaming: bool) -> None:
    first, second = two([])
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_ready(gateway)
        first.stop_listening()
        second.stop_listening()
        got = await ask(gateway.url, stream=streaming)
    assert (got.status, got.error["code"]) == (502, "upstream_unreachable")


@either
async def test_scenario_074_a_loading_model_is_waited_for(*, streaming: bool) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        fu.llama.loading = True
        asked = asyncio.create_task(ask(gateway.url, stream=streaming))
        await fu.generation()
        await gateway.until(lambda: gateway.scheduler.depth == 1)
        assert gateway.scheduler.leases == 0
        fu.llama.loading = False
        got = await asked
    assert got.status == 200
    assert len(fu.generations) == 2


@pytest.mark.slow
async def test_scenario_074_a_client_that_waits_for_a_model_gets_keep_alives() -> None:
    """This holds also after a first attempt, which found out that the model is loading."""
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, streaming=QUICK)) as gateway:
        fu.llama.loading = True
        asked = asyncio.create_task(read_stream(gateway.url, CHAT, chat()))
        await fu.generation()
        await asyncio.sleep(0.45)
        fu.llama.loading = False
        frames = await asked
    kinds = ["comment" if frame.data.startswith(b":") else "data" for frame in frames]
    assert kinds[:3] == ["comment"] * 3
    assert "comment" not in kinds[kinds.index("data") :]


@either
async def test_a_backend_that_always_says_loading_is_503_after_the_second_time(*, streaming: bool) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(LOADING)]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=streaming)
        assert len(fu.generations) == 2
    assert (got.status, got.error["code"]) == (503, "no_backend")
    assert int(got.header(b"retry-after") or 0) >= 1


@either
async def test_a_loading_backend_is_left_for_one_that_is_ready(*, streaming: bool) -> None:
    first, second = two([Write(LOADING)])
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_ready(gateway)
        first.llama.loading = True
        got = await ask(gateway.url, stream=streaming)
    assert got.status == 200
    assert (len(first.generations), len(second.generations)) == (1, 1)


@either
async def test_a_kept_connection_that_went_stale_is_replaced_in_silence(*, streaming: bool) -> None:
    """Only answers that are read whole keep connections. The backend closes this one meanwhile."""
    whole = answer(200, {"choices": []})
    fu = ScriptedUpstream(scripts={CHAT: [Write(whole), Sleep(0.1), Rst()]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        assert (await ask(gateway.url, stream=False)).status == 200
        await fu.all_closed()
        fu.scripts[CHAT] = [Write(whole)] if not streaming else stream(T("a"), DONE)
        assert (await ask(gateway.url, stream=streaming)).status == 200
        assert len(fu.generations) == 2


WHOLE: Script = [Write(answer(200, {"choices": []}))]


def after_the_first(script: Script) -> Callable[[ReceivedRequest], Script]:
    """Answer the first request, whose connection is kept. Play `script` for each that follows."""
    scripts: Iterator[Script] = itertools.chain([WHOLE], itertools.repeat(script))
    return lambda _: next(scripts)


@pytest.mark.parametrize("end", [Rst(), Fin()], ids=["RST", "FIN"])
async def test_request_is_not_sent_again_after_its_work_may_have_begun(end: Rst | Fin) -> None:
    """A kept connection that the backend closes after some time was not stale."""
    fu = ScriptedUpstream(scripts={CHAT: after_the_first([Sleep(0.15), end])})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        assert (await ask(gateway.url, stream=False)).status == 200
        got = await ask(gateway.url, stream=False)
        assert (got.status, got.error["code"]) == (502, "upstream_truncated")
        assert len(fu.generations) == 2


async def test_request_on_a_connection_that_closes_at_the_send_is_sent_again() -> None:
    scripts: Iterator[Script] = iter([WHOLE, [Rst()], WHOLE])
    fu = ScriptedUpstream(scripts={CHAT: lambda _: next(scripts)})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        assert (await ask(gateway.url, stream=False)).status == 200
        assert (await ask(gateway.url, stream=False)).status == 200
        assert len(fu.generations) == 3


async def test_request_that_ends_a_backend_at_once_is_not_given_to_the_next() -> None:
    """The kept connection closes at the send, and after that no program listens at the address."""
    first, second = two([])

    def die(request: ReceivedRequest) -> Script:
        if len(first.generations) == 1:
            return WHOLE
        first.stop_listening()
        return [Rst()]

    first.scripts[CHAT] = die
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_ready(gateway)
        assert (await ask(gateway.url, stream=False)).status == 200
        got = await ask(gateway.url, stream=False)
        assert (got.status, got.error["code"]) == (502, "upstream_truncated")
        assert (len(first.generations), len(second.generations)) == (2, 0)


async def test_a_request_that_is_cancelled_as_its_first_attempt_fails_is_not_tried_again() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(LOADING)]})
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        [backend] = gateway.fleet.backends.values()

        def the_attempt_has_failed() -> None:
            assert gateway.in_flight.cancel("an-id", None) == 1

        backend.pool.on_idle.append(the_attempt_has_failed)
        async with await gateway.client() as client:
            await client.post(CHAT, chat(), b"x-request-id: an-id")
            assert (client.status, (await client.json())["error"]["code"]) == (409, "cancelled")
    assert len(fu.generations) == 1
