"""Faults of the gateway itself and clients that leave: one log line each, nothing kept, no false end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.forwarding.fetch import BufferedReply
from slotgate.gateway.streaming.downstream import Downstream
from slotgate.gateway.streaming.frames import Frames
from slotgate.gateway.streaming.relay import Relay
from slotgate.gateway.upstream import UpstreamExchange
from tests.support.client import RawClient, request_bytes
from tests.support.gateway import CHAT, Gateway, ask, chat, error_in, running_gateway, settings_for, text_of
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, END, STOP, H, T, chunked
from tests.support.script import Fin, Gate, Paced, Script, Sleep, Stall, Step, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

LOGPROBS = T("c").replace(b'"finish_reason"', b'"logprobs":{"content":[]},"finish_reason"')
REST: dict[str, list[Step]] = {
    "success": [Write(chunked(T("b"))), Sleep(0.02), Write(chunked(LOGPROBS, STOP, DONE) + END), Fin()],
    "success at once": [Write(chunked(T("b"), STOP, DONE) + END), Fin()],
    "no end": [Write(chunked(T("b"), STOP, DONE)), Stall()],
    "silence": [Stall()],
    "RST": [Write(chunked(T("b"))), Fin()],
}


@dataclass
class Fault:
    """Makes a method raise once, from the moment it is armed."""

    armed: bool = False
    raised: int = 0

    def into(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        method = getattr(owner, name)

        def raising(*args: object, **kwargs: object) -> object:
            if self.armed:
                self.armed = False
                self.raised += 1
                raise ZeroDivisionError("injected")
            return method(*args, **kwargs)

        monkeypatch.setattr(owner, name, raising)


@pytest.mark.parametrize(
    ("owner", "name", "rest"),
    [
        (Frames, "feed", "success"),
        (Frames, "_message", "success"),
        (Frames, "finish", "success"),
        (Frames, "finish", "no end"),
        (Frames, "keepalive", "silence"),
        (TokenUsage, "read", "success"),
        (Downstream, "put", "success"),
        (Downstream, "put", "silence"),
        (Downstream, "delta", "success"),
        (Downstream, "hand_over", "success"),
        (Downstream, "_take", "success"),
        (Downstream, "close", "success"),
        (Downstream, "close", "no end"),
        (Relay, "_ending", "success"),
        (Relay, "_succeed", "success"),
        (Relay, "_succeed", "no end"),
        (Relay, "_let_go", "success"),
        (Relay, "_fail", "RST"),
        (Relay, "_let_go", "RST"),
        (UpstreamExchange, "close", "success"),
        (UpstreamExchange, "close", "no end"),
        (RequestResponseCycle, "send", "success"),
        (RequestResponseCycle, "send", "success at once"),
        (RequestResponseCycle, "send", "silence"),
    ],
)
async def test_scenario_073_a_fault_after_the_first_byte_is_one_error_frame_and_a_released_lease(
    owner: type, name: str, rest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), gate, *REST[rest]]})
    fault = Fault()
    fault.into(monkeypatch, owner, name)
    quick = {"keepalive_interval_s": 0.1, "terminal_grace_s": 0.05}
    async with fu, running_gateway(settings_for(fu.url, streaming=quick)) as gateway:
        async with await gateway.client() as client:
            await client.post(CHAT, chat())
            frames = []
            async for frame in client.frames():
                frames.append(frame)
                if not gate.event.is_set():
                    gate.event.set()
                    fault.armed = True
            assert client.clean_end
        await fu.at_most_open(0)
        gateway.log.expect("internal error")
    assert fault.raised == 1
    assert text_of(frames).startswith("a")
    error = error_in(frames)
    if name != "_let_go" or rest != "RST":
        assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert "injected" not in error["message"]


@pytest.mark.parametrize("owner", [Frames, TokenUsage, Relay])
async def test_a_fault_before_the_first_byte_is_500(owner: type, monkeypatch: pytest.MonkeyPatch) -> None:
    fu = ScriptedUpstream()
    fault = Fault(armed=True)
    names = {Frames: "feed", TokenUsage: "read", Relay: "_succeed"}
    fault.into(monkeypatch, owner, names[owner])
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, max_tokens=1)
        gateway.log.expect("internal error")
    if owner is Relay:
        assert b"[DONE]" not in got.body
        return
    assert (got.status, got.error["code"]) == (500, "internal_error")


async def test_a_fault_in_a_whole_answer_is_500_and_the_lease_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault = Fault(armed=True)
    fault.into(monkeypatch, BufferedReply, "rewritten")
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        got = await ask(gateway.url, stream=False)
        gateway.log.expect("internal error")
    assert (got.status, got.error["code"]) == (500, "internal_error")


# Departures

Leave = Callable[[RawClient], None]
SCRIPTS: list[Script] = [
    [Stall()],
    [Write(H), Stall()],
    [Write(H + chunked(T("a"))), Stall()],
    [Write(H), Paced(rate=200)],
]


@pytest.mark.slow
async def test_scenario_111_a_thousand_disconnects_are_all_accounted_for_in_the_log() -> None:
    """Clients leave in the queue, before headers, before the first event, mid-stream, and as the answer ends.
    Some departures have a line, the others are counted."""
    dice = random.Random(111)
    fu = ScriptedUpstream(lambda _: dice.choice([*SCRIPTS, None]), llama=LlamaLike(150, tokens=3))
    async with fu, running_gateway(settings_for(fu.url, admission={"max_queue": 1000})) as gateway:
        for _ in range(4):
            await asyncio.gather(*(leave(gateway, dice) for _ in range(250)))
            await gateway.until(lambda: gateway.idle, within=10)
        gateway.parts.log_limiter.flush()
        lines = gateway.log.of("request")
        counted = [entry["left_out"] for entry in gateway.log.of("requests without a line of their own")]
        told = len(lines) + sum(each["client_gone"] for each in counted)
        assert len(lines) < told
        assert 800 < told <= 1000  # a reset can overtake its request
        assert {line["log_level"] for line in gateway.log.events} == {"info"}
        outcomes = {line["outcome"] for line in lines}
        assert outcomes <= {"client_gone", "ok"}
        assert {line["status"] for line in lines if line["outcome"] == "client_gone"} == {499}
        assert told - sum(line["outcome"] == "ok" for line in lines) > 700


async def leave(gateway: Gateway, dice: random.Random) -> None:
    async with await gateway.client() as client:
        streaming = dice.random() < 0.7
        await client.send(request_bytes("POST", CHAT, json=chat(stream=streaming)))
        await asyncio.sleep(dice.choice([0, 0.001, 0.02, 0.05]))
        dice.choice([RawClient.close, RawClient.reset])(client)
