"""The queue on virtual time: it has one timer, waits end by themselves, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
import uvloop

from slotgate.admission import Demand, Lease, Outcome, QueueLimits, Refusal, SlotPool, Ticket
from slotgate.admission.pool_reservation import FIRST_HOLD_S
from slotgate.gateway.forwarding.queue import AdmissionQueue
from tests.support.virtual_time import run_virtual

LIMITS = QueueLimits(max_queue=10**4, max_queue_per_tenant=10**4, queue_timeout_s=60.0)


class WaitingTenants:
    """Tasks that wait for leases as the gateway's do."""

    def __init__(self, *pools: SlotPool) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue = AdmissionQueue(LIMITS, self.loop)
        self.scheduler = self.queue.scheduler
        self.ticks = 0
        self._tick = self.scheduler.tick
        self.scheduler.tick = self._counted  # type: ignore[method-assign]
        self.scheduler.route({"m": pools})

    def _counted(self) -> None:
        self.ticks += 1
        self._tick()

    async def ticket(self, demand: Demand) -> Ticket:
        """Wait until a ticket is settled; when cancelled, leave the queue or pass the grant on."""
        settled = asyncio.Event()
        ticket = self.queue.submit(demand, settled.set)
        try:
            await settled.wait()
        except asyncio.CancelledError:
            self.scheduler.withdraw(ticket)
            if ticket.lease is not None:
                ticket.lease.release(Outcome.UNUSED)
            raise
        return ticket

    async def lease(self, tenant: str = "t", *, width: int = 1, cost: float = 1.0) -> Lease:
        ticket = await self.ticket(Demand(tenant, "m", width, cost))
        assert ticket.lease is not None, ticket.refusal
        return ticket.lease

    async def request(self, tenant: str = "t", *, seconds: float, width: int = 1) -> float:
        """Hold a slot for some seconds. Return the time of the grant."""
        lease = await self.lease(tenant, width=width, cost=seconds)
        granted_at = self.loop.time()
        await asyncio.sleep(seconds)
        lease.release(Outcome.FINISHED)
        return granted_at


def virtually(pool: SlotPool, body: Callable[[WaitingTenants], Awaitable[object]]) -> None:
    """Run a test's body, then check that the queue leaves no timer and no lease."""

    async def main() -> None:
        tenants = WaitingTenants(pool)
        await body(tenants)
        assert (tenants.scheduler.depth, tenants.scheduler.leases) == (0, 0)
        tenants.queue.close()

    run_virtual(main())


def test_a_wait_ends_by_itself_after_the_queue_timeout() -> None:
    async def body(tenants: WaitingTenants) -> None:
        lease = await tenants.lease()
        await asyncio.sleep(7.0)
        ticket = await tenants.ticket(Demand("t", "m"))
        assert ticket.refusal is Refusal.QUEUE_TIMEOUT
        assert tenants.loop.time() == pytest.approx(67.0)
        assert tenants.ticks <= 3
        lease.release(Outcome.FINISHED)

    virtually(SlotPool("gpu", 1), body)


def test_waits_that_are_over_as_soon_as_they_begin_end_one_by_one() -> None:
    """The test uses the loop of `serve`, whose handles have no time if that time is almost now."""

    async def main() -> list[Refusal | None]:
        queue = AdmissionQueue(replace(LIMITS, queue_timeout_s=0.0002), asyncio.get_running_loop())
        pool = SlotPool("gpu", 1)
        queue.scheduler.route({"m": [pool]})
        lease = queue.submit(Demand("t", "m"), lambda: None).lease
        assert lease is not None
        waits = [queue.submit(Demand("t", "m"), lambda: None) for _ in range(3)]
        async with asyncio.timeout(10):
            while any(ticket.queued for ticket in waits):
                await asyncio.sleep(0.001)
        lease.release(Outcome.FINISHED)
        queue.close()
        return [ticket.refusal for ticket in waits]

    assert uvloop.run(main()) == [Refusal.QUEUE_TIMEOUT] * 3


def test_every_wait_ends_at_its_own_time() -> None:
    async def body(tenants: WaitingTenants) -> None:
        lease = await tenants.lease()
        waits = []
        for _ in range(50):
            waits.append(asyncio.create_task(self_timed(tenants)))
            await asyncio.sleep(1.3)
        assert await asyncio.gather(*waits) == pytest.approx([60.0] * 50)
        assert tenants.ticks <= 100
        lease.release(Outcome.FINISHED)

    async def self_timed(tenants: WaitingTenants) -> float:
        began = tenants.loop.time()
        await tenants.ticket(Demand("t", "m"))
        return tenants.loop.time() - began

    virtually(SlotPool("gpu", 1), body)


def test_scenario_022_a_grant_lost_to_a_cancellation_is_passed_on() -> None:
    """The waiter is cancelled in the same turn of the loop in which it was granted a slot, before it could
    run.
    """

    async def body(tenants: WaitingTenants) -> None:
        lease = await tenants.lease()
        loser = asyncio.create_task(tenants.lease())
        winner = asyncio.create_task(tenants.lease())
        await asyncio.sleep(1.0)
        lease.release(Outcome.FINISHED)
        loser.cancel()
        (await winner).release(Outcome.FINISHED)
        with pytest.raises(asyncio.CancelledError):
            await loser
        assert tenants.scheduler.granted == 3

    virtually(SlotPool("gpu", 1), body)


@pytest.mark.parametrize("seed", range(3))
def test_scenario_022_no_slot_is_lost_however_grants_and_cancellations_meet(seed: int) -> None:
    """Slots come free while a hundred waiters are cancelled in any order, some just before they would run."""
    dice = random.Random(seed)

    async def wait(tenants: WaitingTenants) -> None:
        (await tenants.lease()).release(Outcome.FINISHED)

    async def body(tenants: WaitingTenants) -> None:
        for _ in range(10):
            held = [await tenants.lease() for _ in range(2)]
            waiters = [asyncio.create_task(wait(tenants)) for _ in range(100)]
            await asyncio.sleep(1.0)
            actions: list[Callable[[], object]] = [waiter.cancel for waiter in dice.sample(waiters, 100)]
            for lease in held:
                actions.insert(dice.randrange(100), partial(lease.release, Outcome.FINISHED))
            for action in actions:
                action()
                if dice.random() < 0.3:
                    await asyncio.sleep(0)
            await asyncio.wait(waiters)
            assert (tenants.scheduler.depth, tenants.scheduler.leases) == (0, 0)
            assert tenants.scheduler.granted == sum(pool.released.values())
            assert pool.free == 2

    pool = SlotPool("gpu", 2)
    virtually(pool, body)


def test_scenario_022_cancelled_waiters_leave_nothing_behind() -> None:
    async def body(tenants: WaitingTenants) -> None:
        lease = await tenants.lease(width=2)
        waiters = [asyncio.create_task(tenants.lease(width=1 + number % 2)) for number in range(100)]
        await asyncio.sleep(1.0)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.wait(waiters)
        assert tenants.scheduler.depth == 0
        assert tenants.scheduler.granted == 1
        lease.release(Outcome.FINISHED)

    virtually(SlotPool("gpu", 2), body)


def test_a_wide_ticket_that_waits_alone_costs_a_tick_a_phase() -> None:
    """A timer that was left in the past would fire for ever."""

    async def body(tenants: WaitingTenants) -> None:
        running = asyncio.create_task(tenants.request(seconds=50.0))
        await asyncio.sleep(0)
        assert await tenants.request(seconds=1.0, width=2) == pytest.approx(50.0)
        await running
        assert tenants.ticks <= 20

    virtually(SlotPool("gpu", 2), body)


def test_a_hold_that_began_with_a_release_ends_in_time() -> None:
    """No ticket is submitted when the hold begins, so the release must set the timer."""

    async def body(tenants: WaitingTenants) -> None:
        long = asyncio.create_task(tenants.request(seconds=55.0))
        short = asyncio.create_task(tenants.request(seconds=2.5))
        await asyncio.sleep(0)
        wide = asyncio.create_task(tenants.request(seconds=1.0, width=2))
        await asyncio.sleep(0)
        narrow = await tenants.request(seconds=1.0)
        assert 2.5 < narrow <= 2.5 + FIRST_HOLD_S
        await asyncio.gather(long, short, wide)

    virtually(SlotPool("gpu", 2), body)


@pytest.mark.parametrize("slots", [1, 3])
def test_tenants_share_the_slots_whatever_the_length_of_their_requests(slots: int) -> None:
    async def body(tenants: WaitingTenants) -> None:
        work = dict.fromkeys("abc", 0.0)

        async def client(name: str, seconds: float) -> None:
            while True:
                await tenants.request(name, seconds=seconds)
                work[name] += seconds

        lengths = {"a": 0.5, "b": 2.0, "c": 7.0}
        tasks = [asyncio.create_task(client(name, lengths[name])) for name in work for _ in range(2 * slots)]
        await asyncio.sleep(1200 / slots)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert max(work.values()) <= 1.05 * min(work.values()), work
        for lease in list(pool.leases):
            lease.release(Outcome.FINISHED)

    pool = SlotPool("gpu", slots)
    virtually(pool, body)


def test_a_closed_queue_sets_no_timer_any_more() -> None:
    async def main() -> None:
        tenants = WaitingTenants(SlotPool("gpu", 1))
        lease = await tenants.lease()
        waiting = asyncio.create_task(tenants.lease())
        await asyncio.sleep(1.0)
        tenants.queue.close()
        late = asyncio.create_task(tenants.lease())
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 1000.0)
        assert tenants.ticks == 0
        for task in (waiting, late):
            task.cancel()
        await asyncio.wait([waiting, late])
        lease.release(Outcome.FINISHED)

    run_virtual(main())


def test_a_queue_shows_its_scheduler() -> None:
    async def main() -> str:
        return repr(AdmissionQueue(LIMITS, asyncio.get_running_loop()))

    assert run_virtual(main()) == "<AdmissionQueue <Scheduler 0 waiting, 0 leases, 0 granted>>"
