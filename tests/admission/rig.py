"""A scheduler with a clock that the test moves, and one pool a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from admission import Demand, Lease, Outcome, Priority, QueueLimits, Scheduler, SlotPool, Ticket

WIDE_OPEN = QueueLimits(
    max_queue=10**6, max_queue_per_tenant=10**6, max_queue_bytes=10**12, queue_timeout_s=10**6
)


class Rig:
    def __init__(
        self,
        slots: Mapping[str, int] | None = None,
        *,
        models: Mapping[str, Sequence[str]] | None = None,
        limits: QueueLimits = WIDE_OPEN,
        weights: dict[str, float] | None = None,
    ) -> None:
        self.now = 0.0
        self.pools = {name: SlotPool(name, total) for name, total in (slots or {"gpu": 1}).items()}
        self.scheduler = Scheduler(limits, lambda: self.now)
        self.scheduler.fair.set_weights(weights or {})
        routes = models or {"m": list(self.pools)}
        self.scheduler.route({model: [self.pools[name] for name in names] for model, names in routes.items()})
        self.order: list[str] = []
        """Names of the tickets in the order of their grants."""

    @property
    def pool(self) -> SlotPool:
        return next(iter(self.pools.values()))

    def submit(
        self,
        tenant: str = "a",
        *,
        model: str = "m",
        width: int = 1,
        cost: float = 1.0,
        batch: bool = False,
        body_bytes: int = 0,
        name: str = "",
    ) -> Ticket:
        demand = Demand(
            tenant, model, width, cost, Priority.BATCH if batch else Priority.INTERACTIVE, body_bytes
        )
        box: list[Ticket] = []

        def settled() -> None:
            if box and box[0].lease is not None:
                self.order.append(name or tenant)

        ticket = self.scheduler.submit(demand, settled)
        box.append(ticket)
        if ticket.lease is not None:
            self.order.append(name or tenant)
        return ticket

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.scheduler.tick()


def lease_of(ticket: Ticket) -> Lease:
    assert ticket.lease is not None, f"{ticket!r} has no lease"
    return ticket.lease


def finish(ticket: Ticket) -> None:
    lease_of(ticket).release(Outcome.FINISHED)
