"""The live picture: made while somebody looks, once for all, and never waiting for anybody."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from slotgate.gateway.admin.live_status import MOST_VIEWERS, PERIOD_S, LiveStatus
from slotgate.gateway.app.composition import Composition
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.errors import CapacityError
from tests.support.gateway import settings_for
from tests.support.virtual_time import run_virtual


def with_board(test: Callable[[LiveStatus, Composition], Awaitable[None]]) -> None:
    """Run it on virtual time, with a fleet that nobody watches."""

    async def run() -> None:
        parts = Composition(settings_for("http://127.0.0.1:9"), {})
        board = parts.console.live_status
        board.start()
        try:
            await test(board, parts)
        finally:
            await parts.stop()

    run_virtual(run())


def said(frame: bytes) -> dict[str, Any]:
    assert frame.startswith(b"data: {")
    assert frame.endswith(b"}\n\n")
    content: dict[str, Any] = orjson.loads(frame[6:])
    return content


def nobody() -> None:
    """Closes nothing."""


def ended(parts: Composition, name: str) -> None:
    now = asyncio.get_running_loop().time()
    parts.history.put(RequestContext(name, now, model="m", status=200, ended_at=now))


def test_while_nobody_looks_nothing_is_drawn() -> None:
    async def test(board: LiveStatus, parts: Composition) -> None:
        await asyncio.sleep(3600)
        assert board.ticks == 0
        with board.viewing(nobody) as viewer:
            await viewer.frame()
            await asyncio.sleep(60)
        drawn = board.ticks
        assert drawn == pytest.approx(60 / PERIOD_S, abs=2)
        await asyncio.sleep(3600)
        assert board.ticks <= drawn + 1

    with_board(test)


def test_all_who_look_get_the_same_frame_and_not_only_an_equal_one() -> None:
    async def test(board: LiveStatus, parts: Composition) -> None:
        with board.viewing(nobody) as first, board.viewing(nobody) as second, board.viewing(nobody) as third:
            viewers = (first, second, third)
            for _ in range(4):
                frames = [await viewer.frame() for viewer in viewers]
                assert frames[0] is frames[1] is frames[2]

    with_board(test)


def test_the_first_frame_is_whole_and_comes_at_once_the_others_say_what_is_new() -> None:
    async def test(board: LiveStatus, parts: Composition) -> None:
        loop = asyncio.get_running_loop()
        ended(parts, "before")
        began = loop.time()
        with board.viewing(nobody) as viewer:
            first = said(await viewer.frame())
            assert loop.time() == began
            ended(parts, "during")
            second, third = said(await viewer.frame()), said(await viewer.frame())
            assert loop.time() == pytest.approx(began + 2 * PERIOD_S)
        ids = [[entry["id"] for entry in frame["ended"]] for frame in (first, second, third)]
        assert ids == [["before"], ["during"], []]
        assert [frame["full"] for frame in (first, second, third)] == [True, False, False]
        assert len(third["rates"]["points"]) <= 2

    with_board(test)


def test_who_was_slow_gets_a_whole_frame_and_has_missed_nothing() -> None:
    async def test(board: LiveStatus, parts: Composition) -> None:
        with board.viewing(nobody) as viewer:
            await viewer.frame()
            for name in ("one", "two"):
                ended(parts, name)
                await asyncio.sleep(2 * PERIOD_S)
            frame = said(await viewer.frame())
        assert frame["full"]
        assert [entry["id"] for entry in frame["ended"]] == ["two", "one"]

    with_board(test)


def test_a_frame_says_what_the_status_says_and_has_a_cell_for_each_slot() -> None:
    async def test(board: LiveStatus, parts: Composition) -> None:
        parts.runtime.fleet.backends["gpu0"].pool.total = 3
        with board.viewing(nobody) as viewer:
            frame = said(await viewer.frame())
        assert {"models", "backends", "queue", "tenants", "live", "ended", "rates"} <= set(frame)
        [backend] = frame["backends"]
        assert backend["cells"] == [{"state": "idle"}] * 3
        assert backend["slots"]["total"] == 3

    with_board(test)


def test_viewers_are_counted_and_one_that_left_makes_room() -> None:
    async def test(board: LiveStatus, parts: Composition) -> None:
        def look(left: int) -> None:
            with board.viewing(nobody):
                if left:
                    look(left - 1)
                else:
                    with pytest.raises(CapacityError) as refused, board.viewing(nobody):
                        pass
                    assert (refused.value.status, refused.value.code) == (429, "too_many_viewers")

        look(MOST_VIEWERS - 1)
        with board.viewing(nobody):
            pass

    with_board(test)


def test_when_the_gateway_begins_to_stop_all_are_told_and_nobody_comes_in() -> None:
    async def test(board: LiveStatus, parts: Composition) -> None:
        closed: list[str] = []
        with board.viewing(lambda: closed.append("a")), board.viewing(lambda: closed.append("b")):
            parts.drain()
            assert sorted(closed) == ["a", "b"]
            with pytest.raises(CapacityError) as refused, board.viewing(nobody):
                pass
        assert (refused.value.status, refused.value.code) == (503, "draining")

    with_board(test)
