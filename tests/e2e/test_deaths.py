"""A backend dies under its requests. Those of which nothing was sent to the client go on elsewhere, once.

A request that may have killed its backend does not get a second one to kill.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from slotgate.gateway.api.endpoints import ENDPOINTS
from tests.support.client import read_stream
from tests.support.connection import ReceivedRequest
from tests.support.endpoints import Way
from tests.support.gateway import CHAT, Gateway, ask, chat, error_in, running_gateway, settings_for, text_of
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, H, T, answer, chunked
from tests.support.script import Fin, Rst, Script, Sleep, Stall, Write, stream
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

either = pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
WAYS = [
    (Way(endpoint, endpoint.paths[0]), streams)
    for endpoint in ENDPOINTS
    if endpoint.takes_slot
    for streams in sorted({False, endpoint.body_format.streams})
]
WHOLE: Script = [Write(answer(200, {"choices": []}))]
STALLED: Script = [Stall()]


def die(backend: ScriptedUpstream) -> None:
    """End as a process does: nothing listens, and every connection is closed."""
    backend.stop_listening()
    backend.abort_all()


def two(script: Script = STALLED) -> tuple[ScriptedUpstream, ScriptedUpstream]:
    """A backend that plays this script and is asked first, because it has more slots; and a healthy one."""
    return (
        ScriptedUpstream(scripts={CHAT: script}, llama=LlamaLike(8)),
        ScriptedUpstream(scripts={CHAT: answered}, llama=LlamaLike(4)),
    )


def answered(request: ReceivedRequest) -> Script:
    """Answer as is asked, and close the connection."""
    return stream(T("B"), DONE) if request.json()["stream"] else [*WHOLE, Fin()]


async def both_are_known(gateway: Gateway) -> None:
    await gateway.until(lambda: all(b.pool.admitting for b in gateway.fleet.backends.values()))


def text_by(request: ReceivedRequest) -> str:
    content: str = request.json()["messages"][0]["content"]
    return content


@either
async def test_requests_without_a_byte_sent_go_on_at_the_other_backend(*, streaming: bool) -> None:
    first, second = two()
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_known(gateway)
        texts = [f"text {number}" for number in range(4)]
        asked = [
            asyncio.create_task(
                ask(gateway.url, stream=streaming, messages=[{"role": "user", "content": text}])
            )
            for text in texts
        ]
        await first.generation(3)
        die(first)
        got = await asyncio.gather(*asked)
        assert [response.status for response in got] == [200] * 4
        assert sorted(map(text_by, second.generations)) == texts
        assert gateway.parts.runtime.retries.counts.made == {("gpu0", "died"): 4}
        assert gateway.fleet.backends["gpu0"].pool.status(0.0).quarantined == 4


@pytest.mark.parametrize(("way", "streaming"), WAYS, ids=repr)
async def test_every_endpoint_goes_on_at_the_other_backend(way: Way, *, streaming: bool) -> None:
    first, second = two()
    first.scripts = {way.upstream: [Stall()], CHAT: [Stall()]}
    second.scripts[way.upstream] = (
        way.script() if streaming else [Write(answer(200, way.sample.whole)), Fin()]
    )
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_known(gateway)
        members = {"stream": True} if streaming else {}
        beside = asyncio.create_task(ask(gateway.url, stream=False))
        asked = asyncio.create_task(way.ask(gateway.url, **members))
        await first.generation(1)
        die(first)
        assert (await asked).status == 200
        assert [request.path for request in second.generations].count(way.upstream) >= 1
        await beside


@either
async def test_request_that_ran_alone_may_be_the_killer(*, streaming: bool) -> None:
    first, second = two()
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_known(gateway)
        asked = asyncio.create_task(ask(gateway.url, stream=streaming))
        await first.generation()
        die(first)
        got = await asked
        assert (got.status, got.error["code"]) == (502, "upstream_truncated")
        assert second.generations == []
        assert gateway.parts.runtime.retries.counts.withheld == {("gpu0", "alone"): 1}


async def test_killer_ends_two_backends_and_then_no_more() -> None:
    """Its neighbours are tried once. When its client sends it again, it is not tried a second time."""
    backends = [ScriptedUpstream(llama=LlamaLike(8)), ScriptedUpstream(llama=LlamaLike(6))]
    third = ScriptedUpstream(llama=LlamaLike(4))

    def kills(backend: ScriptedUpstream) -> None:
        def answered(request: ReceivedRequest) -> Script:
            if len(backend.generations) < 2:
                return [Stall()]
            asyncio.get_running_loop().call_soon(die, backend)
            return [Stall()]

        backend.scripts[CHAT] = answered

    for backend in backends:
        kills(backend)
    third.scripts[CHAT] = [*WHOLE, Fin()]
    async with backends[0], backends[1], third:
        urls = [backend.url for backend in (*backends, third)]
        async with running_gateway(settings_for(*urls)) as gateway:
            await both_are_known(gateway)
            killer = {"messages": [{"role": "user", "content": "kill"}], "stream": False}
            beside = asyncio.create_task(ask(gateway.url, stream=False))
            await backends[0].generation()
            got = await asyncio.gather(ask(gateway.url, **killer), beside)
            assert [response.status for response in got] == [502, 502]
            assert third.generations == []
            again = await ask(gateway.url, **killer)
            assert again.status == 200, "it is asked for once more, as any request"
    sent = Counter(text_by(request) for backend in (*backends, third) for request in backend.generations)
    assert sent == {"hi": 2, "kill": 3}


@either
async def test_request_that_died_with_a_backend_before_is_not_tried_again(*, streaming: bool) -> None:
    """It had company both times, but it was there both times."""
    first, second = two()
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_known(gateway)
        other = gateway.fleet.backends["gpu1"]
        usage = {"stream_options": {"include_usage": True}}  # or else the gateway adds it at the second time
        for deaths in (1, 2):
            other.set_drained(True)
            others = [
                asyncio.create_task(
                    ask(
                        gateway.url, stream=streaming, messages=[{"role": "user", "content": f"{deaths} {n}"}]
                    )
                )
                for n in range(2)
            ]
            asked = asyncio.create_task(ask(gateway.url, stream=streaming, **usage))
            await first.generation(3 * deaths - 1)
            other.set_drained(False)
            die(first)
            got = await asked
            assert [(await response).status for response in others] == [200, 200]
            assert got.status == (200 if deaths == 1 else 502)
            if deaths == 1:
                await first.listen()
                await gateway.until(lambda: gateway.fleet.backends["gpu0"].pool.free == 8)
        assert gateway.parts.runtime.retries.counts.withheld == {("gpu0", "suspect"): 1}


async def test_stream_that_has_begun_ends_with_an_error() -> None:
    first, second = two([Write(H + chunked(T("A"))), Stall()])
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_known(gateway)
        asked = [asyncio.create_task(read_stream(gateway.url, CHAT, chat())) for _ in range(2)]
        await gateway.until(
            lambda: [lease.delivered for lease in gateway.fleet.backends["gpu0"].pool.leases] == [True] * 2
        )
        die(first)
        for frames in await asyncio.gather(*asked):
            assert text_of(frames) == "A"
            assert error_in(frames)["code"] == "upstream_truncated"
        assert second.generations == []


async def test_beginning_of_an_event_is_not_in_the_answer_of_the_second_backend() -> None:
    first, second = two([Write(H + chunked(b'data: {"choices": [{"del')), Stall()])
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_known(gateway)
        asked = [asyncio.create_task(read_stream(gateway.url, CHAT, chat())) for _ in range(2)]
        leases = gateway.fleet.backends["gpu0"].pool.leases
        await gateway.until(lambda: [lease.started_at is not None for lease in leases] == [True] * 2)
        die(first)
        assert [text_of(frames) for frames in await asyncio.gather(*asked)] == ["B", "B"]


@either
async def test_requests_wait_for_the_only_backend_to_come_back(*, streaming: bool) -> None:
    only = ScriptedUpstream(scripts={CHAT: [Stall()]})
    async with only, running_gateway(settings_for(only.url)) as gateway:
        asked = [
            asyncio.create_task(
                ask(gateway.url, stream=streaming, messages=[{"role": "user", "content": text}])
            )
            for text in "ab"
        ]
        await only.generation(1)
        die(only)
        await gateway.until(lambda: gateway.scheduler.depth == 2)
        only.scripts[CHAT] = answered
        await only.listen()
        assert [(await response).status for response in asked] == [200, 200]


async def test_backend_that_loads_again_has_died() -> None:
    """Something starts it again at once, so its port is never refused."""
    first, second = two()
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_known(gateway)
        asked = [asyncio.create_task(ask(gateway.url, stream=False)) for _ in range(2)]
        await first.generation(1)
        first.llama.loading = True
        first.abort_all()
        assert [(await response).status for response in asked] == [200, 200]


async def test_reset_of_a_backend_that_lives_is_an_error() -> None:
    first, second = two([Sleep(0.01), Rst()])
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_known(gateway)
        got = await asyncio.gather(*(ask(gateway.url, stream=False) for _ in range(3)))
        assert [response.status for response in got] == [502] * 3
        assert second.generations == []


@either
async def test_setting_turns_it_off(*, streaming: bool) -> None:
    first, second = two()
    settings = settings_for
    async with (
        first,
        second,
        running_gateway(settings(first.url, second.url, admission={"retry": "off"})) as gateway,
    ):
        await both_are_known(gateway)
        asked = [asyncio.create_task(ask(gateway.url, stream=streaming)) for _ in range(2)]
        await first.generation(1)
        die(first)
        assert [(await response).status for response in asked] == [502, 502]
        assert second.generations == []
        assert gateway.parts.runtime.retries.counts.withheld == {("gpu0", "off"): 2}


async def test_tenant_does_not_pay_for_slot_time_that_a_death_has_wasted() -> None:
    first, second = two()
    async with first, second, running_gateway(settings_for(first.url, second.url)) as gateway:
        await both_are_known(gateway)
        asked = [asyncio.create_task(ask(gateway.url, stream=False)) for _ in range(2)]
        await first.generation(1)
        await asyncio.sleep(0.05)
        die(first)
        await asyncio.gather(*asked)
        await gateway.until(lambda: gateway.idle)
        assert gateway.scheduler.slot_seconds["anonymous"] < 0.05


async def test_killer_on_a_kept_connection_is_sent_once_more_at_most_to_a_backend_that_is_back_at_once() -> (
    None
):
    """A backend that listens again within milliseconds looks as if the connection had only been stale."""
    fu = ScriptedUpstream()

    def play(request: ReceivedRequest) -> Script:
        return [Rst()] if text_by(request) == "kill" else WHOLE

    fu.scripts[CHAT] = play
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        killer = {"messages": [{"role": "user", "content": "kill"}], "stream": False}
        for _ in range(3):
            assert (await ask(gateway.url, stream=False)).status == 200
            assert (await ask(gateway.url, **killer)).status == 502
        sent = Counter(map(text_by, fu.generations))
        assert sent == {"hi": 3, "kill": 2 + 1 + 1}


async def test_killer_on_a_kept_connection_does_not_wait_for_the_model_to_load_again() -> None:
    fu = ScriptedUpstream()

    def play(request: ReceivedRequest) -> Script:
        if text_by(request) == "kill":
            fu.llama.loading = True
            del fu.scripts[CHAT]
            return [Rst()]
        return WHOLE

    fu.scripts[CHAT] = play
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        assert (await ask(gateway.url, stream=False)).status == 200
        got = await ask(gateway.url, stream=False, messages=[{"role": "user", "content": "kill"}])
        assert (got.status, got.error["code"]) == (502, "upstream_truncated")
        assert Counter(map(text_by, fu.generations)) == {"hi": 1, "kill": 2}
