"""Every time limit expires at its own kind of stall, alone, and has its own answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.client import read_stream
from tests.support.gateway import CHAT, ask, chat, error_in, running_gateway, settings_for, text_of
from tests.support.notation import END, PING, STOP, H, T, answer, chunked
from tests.support.script import Fin, Paced, Script, Sleep, Stall, Step, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

QUICK = {"keepalive_interval_s": 0.1}
PINGS: list[Step] = [step for _ in range(8) for step in (Write(chunked(PING)), Sleep(0.05))]
SILENT: dict[str, Script] = {
    "no headers": [Stall()],
    "headers alone": [Write(H), Stall()],
    "headers and pings": [Write(H), *PINGS, Stall()],
}


@pytest.mark.parametrize("phase", SILENT)
async def test_scenario_065_no_event_in_time_is_504_first_byte_timeout(phase: str) -> None:
    """Headers and pings show that the backend lives, but they are no events."""
    fu = ScriptedUpstream(scripts={CHAT: SILENT[phase]})
    limits = {"first_byte_s": 0.2}
    async with fu, running_gateway(settings_for(fu.url, timeouts=limits)) as gateway:
        got = await ask(gateway.url)
        await fu.at_most_open(0)
    assert (got.status, got.error["code"], got.error["type"]) == (504, "first_byte_timeout", "timeout_error")


async def test_no_event_in_time_after_a_keep_alive_is_one_framed_error() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Stall()]})
    limits = {"first_byte_s": 0.25}
    async with fu, running_gateway(settings_for(fu.url, timeouts=limits, streaming=QUICK)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat())
    assert error_in(frames)["code"] == "first_byte_timeout"


async def test_scenario_065_a_silence_after_an_event_is_one_framed_idle_timeout() -> None:
    """Pings are no events here either."""
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), *PINGS, Stall()]})
    limits = {"idle_s": 0.2}
    async with fu, running_gateway(settings_for(fu.url, timeouts=limits)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat())
        await fu.at_most_open(0)
    assert text_of(frames) == "a"
    error = error_in(frames)
    assert (error["code"], error["type"]) == ("idle_timeout", "timeout_error")


async def test_a_stream_that_takes_too_long_in_all_is_one_framed_total_timeout() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H), Paced(rate=50)]})
    limits = {"total_s": 0.3, "idle_s": 0.2, "first_byte_s": 0.2}
    async with fu, running_gateway(settings_for(fu.url, timeouts=limits)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat())
    assert text_of(frames).startswith(" 0 1 2")
    assert error_in(frames)["code"] == "total_timeout"


@pytest.mark.slow
async def test_limits_that_are_kept_trip_nothing() -> None:
    """Each silence is shorter than its limit. Together they are longer than any limit."""
    script: Script = [Sleep(0.1), Write(H), Sleep(0.1), Write(chunked(T("a")))]
    script = [*script, *(step for _ in range(5) for step in (Sleep(0.12), Write(chunked(T("a")))))]
    fu = ScriptedUpstream(scripts={CHAT: [*script, Write(chunked(STOP, b"data: [DONE]\n\n") + END), Fin()]})
    limits = {"first_byte_s": 0.6, "idle_s": 0.5}
    async with fu, running_gateway(settings_for(fu.url, timeouts=limits)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat())
    assert text_of(frames) == "aaaaaa"


HALF = answer(200, {"choices": []})[:-2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "limits", "code"),
    [
        ([Stall()], {"first_byte_s": 0.2}, "first_byte_timeout"),
        ([Stall()], {"total_s": 0.2}, "total_timeout"),
        ([Write(HALF), Stall()], {"first_byte_s": 0.4, "total_s": 0.8}, "total_timeout"),
        ([Write(HALF), Stall()], {"idle_s": 0.2}, "idle_timeout"),
    ],
)
async def test_a_whole_answer_that_does_not_come_in_time_is_504(
    script: Script, limits: dict[str, float], code: str
) -> None:
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, running_gateway(settings_for(fu.url, timeouts=limits)) as gateway:
        got = await ask(gateway.url, stream=False)
        await fu.at_most_open(0)
        assert len(fu.generations) == 1
    assert (got.status, got.error["code"], got.error["type"]) == (504, code, "timeout_error")


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_connection_that_is_not_made_in_time_is_502_and_leaves_no_slot_in_doubt(
    *, streaming: bool
) -> None:
    fu = ScriptedUpstream()
    limits = {"connect_s": 0.2}
    async with fu, running_gateway(settings_for(fu.url, timeouts=limits)) as gateway:
        fu.stop_listening()
        await asyncio.sleep(0)
        with unanswered(fu.port):
            got = await ask(gateway.url, stream=streaming)
        assert not gateway.fleet.backends["gpu0"].pool.quarantine.slots
    assert (got.status, got.error["code"]) == (502, "upstream_unreachable")


async def test_a_stream_given_up_while_it_connects_leaves_no_slot_in_doubt() -> None:
    fu = ScriptedUpstream()
    limits = {"first_byte_s": 0.2}
    async with fu, running_gateway(settings_for(fu.url, timeouts=limits)) as gateway:
        fu.stop_listening()
        await asyncio.sleep(0)
        with unanswered(fu.port):
            got = await ask(gateway.url)
        assert not gateway.fleet.backends["gpu0"].pool.quarantine.slots
    assert (got.status, got.error["code"]) == (504, "first_byte_timeout")


@contextmanager
def unanswered(port: int) -> Iterator[None]:
    """Make a listener whose queue is full, so that every connection to this port has to wait."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        for _ in range(3):
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield
