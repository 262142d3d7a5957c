"""The feed: events, polls, lost connections and refusals."""

from __future__ import annotations

import orjson
import pytest

from slotgate.gateway.tools.top.feed import ConnectionLost, Feed, RefusedError, UnreachableError
from tests.gateway.tools.top.snapshots import FRAME, STATUS, request
from tests.support.notation import END, H, answer, chunked
from tests.support.script import Fin, Gate, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

EVENTS, STATE, REQUESTS = "/admin/events", "/admin/status", "/admin/requests"


def frame(**changes: object) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(FRAME | changes)


async def test_events_are_read_as_they_come_with_the_key_in_a_header() -> None:
    gate = Gate()
    later = frame(full=False, live=[], ended=[request(7)])
    script: Script = [Write(H + chunked(frame()[:100])), gate, Write(chunked(frame()[100:] + later)), Stall()]
    async with ScriptedUpstream(scripts={EVENTS: script}) as fu, Feed(fu.url, "sg-k") as feed:
        gate.event.set()
        snapshots = feed.live()
        seen = [await anext(snapshots) for _ in range(2)]
        await snapshots.aclose()
        assert fu.requests[0].head.get(b"authorization") == b"Bearer sg-k"
    assert [len(one.requests) for one in seen if not isinstance(one, ConnectionLost)] == [6, 4]


@pytest.mark.parametrize("status", [404, 429])
async def test_without_events_status_and_requests_are_polled(status: int) -> None:
    scripts: dict[str, Script] = {
        EVENTS: [Write(answer(status, {}))],
        STATE: [Write(answer(200, STATUS))],
        REQUESTS: [Write(answer(200, {"requests": [request(1)]}))],
    }
    async with ScriptedUpstream(scripts=scripts) as fu, Feed(fu.url, "k") as feed:
        snapshot = await feed.once()
    assert (len(snapshot.requests), snapshot.rate_is_live) == (1, False)


@pytest.mark.slow
async def test_a_connection_that_is_lost_is_made_again() -> None:
    cut_off: Script = [Write(H + chunked(frame())), Fin()]
    ended: Script = [Write(H + chunked(frame()) + END), Stall()]
    fu = ScriptedUpstream(scripts={EVENTS: lambda _: cut_off if len(fu.requests) == 1 else ended})
    async with fu, Feed(fu.url, "k") as feed:
        snapshots = feed.live()
        kinds = [type(await anext(snapshots)).__name__ for _ in range(4)]
        await snapshots.aclose()
    assert kinds == ["Snapshot", "ConnectionLost", "Snapshot", "ConnectionLost"]


@pytest.mark.slow
async def test_a_gateway_that_refuses_later_ends_the_view() -> None:
    scripts: list[Script] = [[Write(H + chunked(frame()) + END), Fin()], [Write(answer(401, {}))]]
    fu = ScriptedUpstream(scripts={EVENTS: lambda _: scripts[min(len(fu.requests) - 1, 1)]})
    async with fu, Feed(fu.url, "k") as feed:
        with pytest.raises(RefusedError, match="401"):
            assert [type(each).__name__ async for each in feed.live()] == []


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([Write(answer(401, {}))], RefusedError),
        ([Write(answer(500, {}))], UnreachableError),
        ([Fin()], UnreachableError),
        ([Write(H + chunked(b"data: {broken\n\n") + END)], RefusedError),
        ([Write(H + chunked(b'data: {"a":1}\n\n') + END)], RefusedError),
        ([Write(H + chunked(b": nothing\n\n") + END), Fin()], UnreachableError),
    ],
)
async def test_an_invalid_first_answer_ends_the_view(script: Script, error: type[Exception]) -> None:
    async with ScriptedUpstream(scripts={EVENTS: script}) as fu, Feed(fu.url, "k") as feed:
        with pytest.raises(error):
            await feed.once()
