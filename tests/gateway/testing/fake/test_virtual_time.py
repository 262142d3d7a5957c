"""A gateway in front of the scripted llama-server, in one event loop, on virtual time."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import orjson
import pytest

from slotgate.gateway.app.serve import assemble
from slotgate.gateway.settings import Settings, parse
from slotgate.gateway.testing.fake import FakeServer, scene_of
from slotgate.gateway.testing.fake.net.virtual_time import BlockedForeverError, run_virtual
from tests.support.notation import DONE
from tests.support.peer import AsgiPeer

HOUR_S = 3600.0
BODY = {"messages": [{"role": "user", "content": "hi"}]}


def script(server: dict[str, Any] | None = None, **reply: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"server": {"model": "m", **(server or {})}, "default": {"text": "At last.", **reply}}


def in_front_of(fake: FakeServer, **sections: Any) -> Settings:  # noqa: ANN401
    backend = {"name": "fake", "url": fake.url, "models": ["m"], "health_interval_s": 30}
    return parse({"server": {"port": 0}, "backend": [backend], "usage": {"store": "none"}, **sections}, {})


def test_keepalives_come_every_fifteen_seconds_during_an_hour_of_prompt() -> None:
    async def main() -> list[bytes]:
        patient = {"total_s": 2 * HOUR_S, "first_byte_s": HOUR_S}
        async with FakeServer(scene_of(script(prefill_s=HOUR_S - 5))) as fake:
            async with assemble(in_front_of(fake, timeouts=patient)) as (app, _):
                async with AsgiPeer(app, json={**BODY, "stream": True}) as peer:
                    await peer.whole(within=2 * HOUR_S)
                    return peer.frames

    began = time.perf_counter()
    frames = run_virtual(main())
    assert time.perf_counter() - began < HOUR_S / 100
    assert [frames.count(frame) for frame in (b": keep-alive\n\n", DONE)] == [239, 1]


@pytest.mark.slow
def test_a_model_that_loads_for_ten_minutes_is_waited_for() -> None:
    async def main() -> float:
        async with FakeServer(scene_of(script({"load_s": 600}))) as fake:
            async with assemble(in_front_of(fake, admission={"queue_timeout_s": 900})) as (app, _):
                async with AsgiPeer(app, json=BODY) as peer:
                    await peer.whole(within=1200)
                    assert peer.status == 200
                    return asyncio.get_running_loop().time()

    assert 599 < run_virtual(main()) < 660


def test_polling_keeps_abandoned_work_alive_until_it_stops() -> None:
    """On virtual time, the second without a result is exact."""

    async def main() -> tuple[bool, bool]:
        async with FakeServer(scene_of(script(prefill_s=60))) as fake:
            loop, slots = asyncio.get_running_loop(), fake.llama.slots
            leaving, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", fake.port)
            leaving.write(b"POST /completion HTTP/1.1\r\nContent-Length: 16\r\n\r\n" + b'{"prompt": "hi"}')
            await asyncio.sleep(1)
            leaving.abort()
            for _ in range(10):
                await asyncio.sleep(0.9)
                asking, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", fake.port)
                asking.write(b"GET /slots HTTP/1.1\r\n\r\n")
                await asyncio.sleep(0.01)
                asking.abort()
            kept = bool(slots.busy)
            await asyncio.sleep(1.01)
            return kept, bool(slots.busy)

    assert run_virtual(main()) == (True, False)


def test_a_request_takes_no_slot_while_its_body_is_read() -> None:
    """`/slots` shows an idle slot before the work begins, so a probe that comes early is wrong."""

    async def main() -> tuple[bool, bool]:
        async with FakeServer(scene_of(script({"parse_s_per_mib": 1.0}, prefill_s=60))) as fake:
            asking, _ = await asyncio.get_running_loop().create_connection(
                asyncio.Protocol, "127.0.0.1", fake.port
            )
            body = b'{"prompt": "hi", "x": "' + b"x" * (1 << 20) + b'"}'
            asking.write(b"POST /completion HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await asyncio.sleep(0.9)
            early = bool(fake.llama.slots.busy)
            await asyncio.sleep(0.2)
            return early, bool(fake.llama.slots.busy)

    assert run_virtual(main()) == (False, True)


class Listening(asyncio.Protocol):
    """A client that notes the time of each token."""

    def __init__(self) -> None:
        self.heard: dict[str, float] = {}
        self.over = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        for word in ("a", " b", " c", " d"):
            if b'"content":"%b"' % word.encode() in data:
                self.heard[word] = round(asyncio.get_running_loop().time(), 6)

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()


def test_tokens_come_at_exactly_the_times_of_the_script() -> None:
    async def main(pace: dict[str, Any]) -> dict[str, float]:
        async with FakeServer(scene_of({"default": {"text": "a b c d", **pace}})) as fake:
            loop = asyncio.get_running_loop()
            asking, listening = await loop.create_connection(Listening, "127.0.0.1", fake.port)
            body = orjson.dumps({**BODY, "stream": True})
            asking.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            await listening.over.wait()
            return listening.heard

    timed = {"prefill_s": 10, "at_s": [0.0, 2.0], "tokens_per_s": 4}
    assert run_virtual(main(timed)) == {"a": 10.0, " b": 12.0, " c": 12.25, " d": 12.5}
    by_length = {"prompt_tokens_per_s": 25, "tokens_per_s": 1}  # the prompt has 25 tokens
    assert run_virtual(main(by_length)) == {"a": 2.0, " b": 3.0, " c": 4.0, " d": 5.0}
    jittered = run_virtual(main({"tokens_per_s": 1, "jitter": 0.5}))
    gaps = [after - before for before, after in itertools.pairwise(jittered.values())]
    assert len(set(gaps)) == 3
    assert all(0.5 <= gap <= 1.5 for gap in gaps)
    assert jittered == run_virtual(main({"tokens_per_s": 1, "jitter": 0.5}))


def test_connecting_to_a_port_without_a_server_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", 1)

    run_virtual(main())


def test_waiting_for_ever_is_an_error_at_once() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(BlockedForeverError, match="test_virtual_time"):
        run_virtual(main())
