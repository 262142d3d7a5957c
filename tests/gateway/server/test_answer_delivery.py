"""The delivery of an answer: a slow client has all the time it needs, and a stalled one is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from slotgate.gateway.http.delivery import Delivered
from slotgate.gateway.server.answer_delivery import AnswerDelivery
from tests.support.virtual_time import run_virtual

STALL_S = 60.0


class SlowTransport(asyncio.Transport):
    """A write buffer that the test empties."""

    def __init__(self, unsent: int) -> None:
        self.unsent = unsent
        self.limits: list[int | None] = []
        self.on_abort: Callable[[], None] = lambda: None

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits.append(high)

    def abort(self) -> None:
        self.on_abort()


def delivery_of(transport: SlowTransport) -> AnswerDelivery:
    delivery = AnswerDelivery(transport, asyncio.get_running_loop())
    delivery.stall_timeout_s = STALL_S
    transport.on_abort = delivery.lost
    return delivery


def test_an_answer_that_the_kernel_took_at_once_is_delivered_at_once() -> None:
    async def main() -> None:
        delivery = delivery_of(SlowTransport(0))
        followed: list[bool] = []
        delivery.written(lambda: followed.append(True))
        assert (delivery.result, followed) == (Delivered.SENT, [True])
        assert await delivery.over() is Delivered.SENT

    run_virtual(main())


def test_a_client_that_takes_a_byte_a_minute_gets_everything() -> None:
    async def main() -> None:
        transport = SlowTransport(100)
        delivery = delivery_of(transport)
        followed: list[bool] = []
        delivery.written(lambda: followed.append(True))
        over = asyncio.create_task(delivery.over())
        while transport.unsent:
            await asyncio.sleep(STALL_S - 1 - STALL_S / 4)
            assert not followed
            transport.unsent -= 1
        delivery.resumed()
        assert await over is Delivered.SENT
        assert followed == [True]
        assert transport.limits == [0, None]

    run_virtual(main())


@pytest.mark.parametrize("complete", [True, False])
def test_a_client_that_takes_nothing_is_given_up(*, complete: bool) -> None:
    """Also while the rest of the answer has not been written yet."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        transport, gone = SlowTransport(100), asyncio.Event()
        delivery = delivery_of(transport)
        transport.on_abort = gone.set
        followed: list[bool] = []
        began = loop.time()
        delivery.paused()
        if complete:
            delivery.written(lambda: followed.append(True))
        await gone.wait()
        delivery.lost()
        assert STALL_S <= loop.time() - began <= STALL_S * 1.25
        assert (delivery.result, followed) == (Delivered.STALLED, [])

    run_virtual(main())


def test_a_client_that_catches_up_between_two_pieces_is_not_timed() -> None:
    async def main() -> None:
        transport = SlowTransport(100)
        delivery = delivery_of(transport)
        for _ in range(5):
            delivery.paused()
            await asyncio.sleep(STALL_S * 0.9)
            delivery.resumed()
            await asyncio.sleep(STALL_S * 10)
        assert delivery.result is None

    run_virtual(main())


def test_a_lost_connection_ends_the_wait() -> None:
    async def main() -> None:
        delivery = delivery_of(SlowTransport(100))
        delivery.written(lambda: None)
        over = asyncio.create_task(delivery.over())
        await asyncio.sleep(1)
        delivery.lost()
        assert await over is Delivered.GONE

    run_virtual(main())


def test_an_answer_that_was_never_completed_is_not_waited_for() -> None:
    async def main() -> None:
        assert await delivery_of(SlowTransport(100)).over() is Delivered.GONE

    run_virtual(main())
