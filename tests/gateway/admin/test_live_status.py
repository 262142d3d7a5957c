"""Live snapshots are built only for subscribers, once for all of them, and wait for none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from slotgate.gateway.admin.live_status import MAX_SUBSCRIBERS, PERIOD_S, LiveStatus
from slotgate.gateway.app.composition import Composition
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.errors import CapacityError
from tests.support.gateway import settings_for
from tests.support.virtual_time import run_virtual


def with_live_status(test: Callable[[LiveStatus, Composition], Awaitable[None]]) -> None:
    """Run the test on virtual time, with a fleet whose backends are not probed."""

    async def run() -> None:
        parts = Composition(settings_for("http://127.0.0.1:9"), {})
        live_status = parts.console.live_status
        live_status.start()
        try:
            await test(live_status, parts)
        finally:
            await parts.stop()

    run_virtual(run())


def content_of(frame: bytes) -> dict[str, Any]:
    assert frame.startswith(b"data: {")
    assert frame.endswith(b"}\n\n")
    content: dict[str, Any] = orjson.loads(frame[6:])
    return content


def ignore_close() -> None:
    """These subscribers need not know that the stream is closed."""


def ended(parts: Composition, name: str) -> None:
    now = asyncio.get_running_loop().time()
    parts.history.put(RequestContext(name, now, model="m", status=200, ended_at=now))


def test_without_subscribers_no_snapshot_is_built() -> None:
    async def test(live_status: LiveStatus, parts: Composition) -> None:
        await asyncio.sleep(3600)
        assert live_status.ticks == 0
        with live_status.subscription(ignore_close) as subscriber:
            await subscriber.frame()
            await asyncio.sleep(60)
        built = live_status.ticks
        assert built == pytest.approx(60 / PERIOD_S, abs=2)
        await asyncio.sleep(3600)
        assert live_status.ticks <= built + 1

    with_live_status(test)


def test_all_subscribers_get_the_same_frame_object() -> None:
    async def test(live_status: LiveStatus, parts: Composition) -> None:
        with (
            live_status.subscription(ignore_close) as first,
            live_status.subscription(ignore_close) as second,
            live_status.subscription(ignore_close) as third,
        ):
            subscribers = (first, second, third)
            for _ in range(4):
                frames = [await subscriber.frame() for subscriber in subscribers]
                assert frames[0] is frames[1] is frames[2]

    with_live_status(test)


def test_the_first_frame_is_full_and_comes_at_once_and_later_ones_are_deltas() -> None:
    async def test(live_status: LiveStatus, parts: Composition) -> None:
        loop = asyncio.get_running_loop()
        ended(parts, "before")
        began = loop.time()
        with live_status.subscription(ignore_close) as subscriber:
            first = content_of(await subscriber.frame())
            assert loop.time() == began
            ended(parts, "during")
            second, third = content_of(await subscriber.frame()), content_of(await subscriber.frame())
            assert loop.time() == pytest.approx(began + 2 * PERIOD_S)
        ids = [[entry["id"] for entry in frame["ended"]] for frame in (first, second, third)]
        assert ids == [["before"], ["during"], []]
        assert [frame["full"] for frame in (first, second, third)] == [True, False, False]
        assert len(third["rates"]["points"]) <= 2

    with_live_status(test)


def test_a_slow_subscriber_gets_a_full_frame_and_misses_nothing() -> None:
    async def test(live_status: LiveStatus, parts: Composition) -> None:
        with live_status.subscription(ignore_close) as subscriber:
            await subscriber.frame()
            for name in ("one", "two"):
                ended(parts, name)
                await asyncio.sleep(2 * PERIOD_S)
            frame = content_of(await subscriber.frame())
        assert frame["full"]
        assert [entry["id"] for entry in frame["ended"]] == ["two", "one"]

    with_live_status(test)


def test_a_frame_contains_the_status_and_a_cell_for_each_slot() -> None:
    async def test(live_status: LiveStatus, parts: Composition) -> None:
        parts.runtime.fleet.backends["gpu0"].pool.total = 3
        with live_status.subscription(ignore_close) as subscriber:
            frame = content_of(await subscriber.frame())
        assert {"models", "backends", "queue", "tenants", "live", "ended", "rates"} <= set(frame)
        [backend] = frame["backends"]
        assert backend["cells"] == [{"state": "idle"}] * 3
        assert backend["slots"]["total"] == 3

    with_live_status(test)


def test_the_number_of_subscribers_is_limited_and_one_that_left_makes_room() -> None:
    async def test(live_status: LiveStatus, parts: Composition) -> None:
        def subscribe(left: int) -> None:
            with live_status.subscription(ignore_close):
                if left:
                    subscribe(left - 1)
                else:
                    with pytest.raises(CapacityError) as refused, live_status.subscription(ignore_close):
                        pass
                    assert (refused.value.status, refused.value.code) == (429, "too_many_viewers")

        subscribe(MAX_SUBSCRIBERS - 1)
        with live_status.subscription(ignore_close):
            pass

    with_live_status(test)


def test_a_gateway_that_drains_closes_all_subscribers_and_refuses_new_ones() -> None:
    async def test(live_status: LiveStatus, parts: Composition) -> None:
        closed: list[str] = []
        with (
            live_status.subscription(lambda: closed.append("a")),
            live_status.subscription(lambda: closed.append("b")),
        ):
            parts.drain()
            assert sorted(closed) == ["a", "b"]
            with pytest.raises(CapacityError) as refused, live_status.subscription(ignore_close):
                pass
        assert (refused.value.status, refused.value.code) == (503, "draining")

    with_live_status(test)
