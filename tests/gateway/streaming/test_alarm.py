"""An alarm rings once, at the time it was last set for, on any event loop and however near that time is."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from slotgate.gateway.streaming.alarm import Alarm
from tests.support.virtual_time import run_virtual

NEAR_S = 0.0002
"""uvloop counts in whole milliseconds, so this time is now for it."""
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


class Bell:
    """An alarm, and the times at which it has rung."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.rang: list[float] = []
        self.alarm = Alarm(self.loop, lambda: self.rang.append(self.loop.time()))


def virtually(body: Callable[[Bell], Awaitable[object]]) -> Bell:
    async def main() -> Bell:
        bell = Bell()
        await body(bell)
        await asyncio.sleep(1000.0)
        return bell

    return run_virtual(main())


def test_an_alarm_rings_once_and_is_then_unset() -> None:
    async def body(bell: Bell) -> None:
        bell.alarm.set(5.0)
        assert bell.alarm.at == 5.0

    bell = virtually(body)
    assert bell.rang == [5.0]
    assert bell.alarm.at is None


def test_set_moves_an_alarm_to_an_earlier_or_a_later_time() -> None:
    async def body(bell: Bell) -> None:
        for at in (5.0, 3.0, 7.0):
            bell.alarm.set(at)

    assert virtually(body).rang == [7.0]


def test_set_no_later_moves_an_alarm_only_to_an_earlier_time() -> None:
    async def body(bell: Bell) -> None:
        for at in (5.0, 3.0, 7.0):
            bell.alarm.set_no_later(at)

    assert virtually(body).rang == [3.0]


def test_an_alarm_can_be_set_again_while_it_rings() -> None:
    async def body(bell: Bell) -> None:
        def ring() -> None:
            bell.rang.append(bell.loop.time())
            if len(bell.rang) < 3:
                again.set_no_later(bell.loop.time() + 2.0)

        again = Alarm(bell.loop, ring)
        again.set(1.0)

    assert virtually(body).rang == [1.0, 3.0, 5.0]


def test_a_closed_alarm_does_not_ring_and_cannot_be_set() -> None:
    async def body(bell: Bell) -> None:
        bell.alarm.set(5.0)
        bell.alarm.close()
        bell.alarm.set(6.0)
        bell.alarm.set_no_later(7.0)
        assert bell.alarm.at is None

    assert virtually(body).rang == []


@pytest.mark.parametrize("after_s", [NEAR_S, 0.0, -1.0])
@pytest.mark.parametrize("loop", LOOPS)
def test_an_alarm_set_for_almost_now_can_be_moved(loop: str, after_s: float) -> None:
    async def main() -> list[float]:
        bell = Bell()
        at = bell.loop.time() + after_s
        bell.alarm.set(at)
        bell.alarm.set_no_later(at + 1000.0)
        assert bell.alarm.at == at
        bell.alarm.set_no_later(at - 1000.0)
        assert bell.alarm.at == at - 1000.0
        await asyncio.sleep(0.01)
        return bell.rang

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        assert len(runner.run(main())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("alarms", [1, 5000])
@pytest.mark.parametrize("loop", LOOPS)
def test_after_a_standstill_sockets_are_read_before_an_alarm_rings(loop: str, alarms: int) -> None:
    """uvloop runs its timers directly after the callbacks of its sockets, without reading the sockets
    again."""

    async def main() -> list[str]:
        running = asyncio.get_running_loop()
        happened: list[str] = []
        pairs = [socket.socketpair(), socket.socketpair()]
        (stops, stop), (speaks, spoken) = pairs

        def stand_still() -> None:
            stop.recv(1)
            time.sleep(0.3)
            speaks.send(b"x")

        def hear() -> None:
            spoken.recv(1)
            happened.append("heard")

        running.add_reader(stop, stand_still)
        running.add_reader(spoken, hear)
        ringing = [Alarm(running, lambda: happened.append("rang")) for _ in range(alarms)]
        for alarm in ringing:
            alarm.set(running.time() + 0.25)
        stops.send(b"x")
        await asyncio.sleep(0.6)
        for heard in (stop, spoken):
            running.remove_reader(heard)
        for end in (*pairs[0], *pairs[1]):
            end.close()
        return happened

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        assert runner.run(main()) == ["heard", *["rang"] * alarms]


@pytest.mark.parametrize("loop", LOOPS)
def test_an_alarm_closed_while_sockets_are_read_does_not_ring(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "slotgate.gateway.streaming.alarm.READ_S", 0.1
    )  # a busy machine may be away for a millisecond

    async def main() -> list[float]:
        bell = Bell()
        bell.alarm.set(bell.loop.time() - 1.0)
        first = bell.alarm._handle
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert bell.alarm._handle not in (first, None), "it is late, and waits"
        bell.alarm.close()
        await asyncio.sleep(0.2)
        return bell.rang

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        assert runner.run(main()) == []
