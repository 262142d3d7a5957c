"""A request ends in bounded time, however its client leaves and whatever becomes of a cancellation."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from starlette.types import Message

from slotgate.gateway.http.disconnect import abort_connection, until_client_gone
from tests.support.virtual_time import run_virtual

ROUNDS = 500


class Client:
    """The receiving half of a request. `leave` is reported once, as by an ASGI server."""

    def __init__(self, *, swallows: bool = False) -> None:
        self.left = asyncio.Event()
        self.swallows = swallows

    async def receive(self) -> Message:
        while True:
            try:
                await self.left.wait()
            except asyncio.CancelledError:
                if not self.swallows:
                    raise
                continue
            return {"type": "http.disconnect"}


@pytest.mark.parametrize("turns", range(4))
def test_scenario_007_a_request_cancelled_from_outside_as_its_client_leaves_ends(turns: int) -> None:
    """The cancellation meets the watcher before, in and after the turn in which it hears of the client."""

    async def main() -> int:
        ended = 0
        for number in range(ROUNDS):
            client = Client()

            async def work(client: Client = client) -> None:
                with until_client_gone(client.receive):
                    await asyncio.sleep(3600)

            task = asyncio.create_task(work())
            for _ in range(2):
                await asyncio.sleep(0)
            if number % 2:
                client.left.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            client.left.set()
            await asyncio.wait({task}, timeout=1)
            ended += task.done()
        return ended

    assert run_virtual(main()) == ROUNDS


def test_scenario_007_a_server_that_swallows_the_cancellation_of_a_read_holds_no_request_up() -> None:
    """The watcher's `receive` never ends. The request does not wait for it."""

    async def main() -> float:
        client = Client(swallows=True)
        with until_client_gone(client.receive):
            await asyncio.sleep(1)
        now = asyncio.get_running_loop().time()
        client.left.set()
        return now

    began_to_end_s = run_virtual(main())
    assert began_to_end_s == pytest.approx(1, abs=0.1)


def test_scenario_007_work_that_swallows_a_cancellation_is_cancelled_again() -> None:
    async def main() -> int:
        client, swallowed = Client(), 0
        asyncio.get_running_loop().call_later(1, client.left.set)
        with until_client_gone(client.receive) as watch:
            while swallowed < 10:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    swallowed += 1
            await asyncio.sleep(3600)
        assert watch.gone
        return swallowed

    assert run_virtual(main()) == 10


def test_scenario_007_an_aborted_connection_that_is_never_reported_closed_is_not_waited_for() -> None:
    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                await abort_connection({"extensions": {"slotgate.abort": lambda: None}}, never)
        return loop.time() - began

    assert run_virtual(main()) == pytest.approx(1, abs=0.1)
