"""The gateway's side of the model: requests under leases, and the probes that the quarantine asks for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable

from slotgate.admission import SETTLE_S, Demand, Lease, Outcome, QueueLimits, SlotPool
from slotgate.gateway.forwarding.queue import AdmissionQueue
from tests.admission.llama_model import LlamaModel, ModelledConnection, ModelledWork

LIMITS = QueueLimits(max_queue=10**4, max_queue_per_tenant=10**4, queue_timeout_s=1e6)
MIB = 1024 * 1024


class Prober:
    """The gateway's side.

    `latency_s` is the time that a byte takes between model and gateway, in both directions.
    """

    def __init__(
        self,
        llama: LlamaModel,
        *,
        latency_s: float = 0.0,
        answers_after_s: Iterable[float] = (0.0,),
        unreadable: Iterable[bool] = (False,),
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.llama = llama
        self.pool = SlotPool("gpu", llama.slots)
        self.queue = AdmissionQueue(LIMITS, self.loop)
        self.queue.scheduler.route({"m": [self.pool]})
        self.probes: list[float] = []
        """The times at which the probes left."""
        self._latency_s = latency_s
        self._answers_after_s = itertools.cycle(answers_after_s)
        self._unreadable = itertools.cycle(unreadable)
        self._wake = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        self._probing = self.loop.create_task(self._probe_for_ever())
        self.pool.on_quarantine.append(self._wake.set)

    async def request(self, work: ModelledWork, leaves_after_s: float | None = None) -> float:
        """Wait for a lease, then stay to the end, or leave after this time.

        Return when the lease was granted.
        """
        width = min(work.tasks, self.pool.total)
        lease = await self._lease(Demand("t", "m", width, body_bytes=work.body_mib * MIB))
        granted_at = self.loop.time()
        connection = ModelledConnection(
            lambda: self._later(lease.start), lambda: self._later(lambda: _deliver(lease))
        )
        serving = self.loop.create_task(self.llama.serve(work, connection))
        self._serving.add(serving)
        try:
            async with asyncio.timeout(leaves_after_s):
                await asyncio.shield(serving)
                await asyncio.sleep(self._latency_s)
        except TimeoutError:
            lease.release(Outcome.ABANDONED)
            self._later(connection.close)
        else:
            lease.release(Outcome.FINISHED)
        return granted_at

    async def end(self) -> None:
        """Wait until the model is idle and every slot is back. Fail if the slots need too long."""
        await asyncio.gather(*self._serving)
        try:
            async with asyncio.timeout(20.0):
                while self.pool.free < self.pool.total:
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise AssertionError(f"a slot is lost: {self.pool!r}") from error
        finally:
            self._probing.cancel()
            self.queue.close()

    async def _lease(self, demand: Demand) -> Lease:
        settled = asyncio.Event()
        ticket = self.queue.submit(demand, settled.set)
        await settled.wait()
        assert ticket.lease is not None
        return ticket.lease

    async def _probe_for_ever(self) -> None:
        while True:
            self._wake.clear()
            at = self.pool.next_probe_at()
            try:
                async with asyncio.timeout_at(at):
                    await self._wake.wait()
            except TimeoutError:
                await self._ask()

    async def _ask(self) -> None:
        probe = self.pool.probe_sent(self.loop.time())
        self.probes.append(self.loop.time())
        running = await self.llama.answer_slots(next(self._answers_after_s))
        await asyncio.sleep(SETTLE_S)
        self.pool.probe_answered(probe, None if next(self._unreadable) else running, self.loop.time())
        self.queue.scheduler.dispatch()

    def _later(self, action: Callable[[], None]) -> None:
        self.loop.call_later(self._latency_s, action)


def _deliver(lease: Lease) -> None:
    lease.delivered = True
