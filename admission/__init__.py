"""Admission: slots, leases and the fair queue. Decisions over plain data; standard library only, no HTTP.

A request asks with a `Demand`, waits with a `Ticket`, works under a `Lease`. Start reading in
`scheduler.py`; `quarantine.py` holds the rule for slots whose work was abandoned.
"""

from __future__ import annotations

from slotgate.admission.body_budget import BodyBudget, HeldBody
from slotgate.admission.concurrency import Concurrency
from slotgate.admission.demand import Demand, Priority, RequestInPieces
from slotgate.admission.errors import Refusal, Refused
from slotgate.admission.lease import Lease, LeaseState, Outcome
from slotgate.admission.limits import Limiter, TenantLimits, UsageReservation
from slotgate.admission.pool import PoolStatus, SlotPool
from slotgate.admission.quarantine import SETTLE_S, Quarantine, SlotProbe
from slotgate.admission.queue_bounds import QueueLimits
from slotgate.admission.scheduler import QueueStatus, Scheduler
from slotgate.admission.ticket import Ticket, TicketState
from slotgate.admission.token_bucket import RateState

__all__ = [
    "SETTLE_S",
    "BodyBudget",
    "Concurrency",
    "Demand",
    "HeldBody",
    "Lease",
    "LeaseState",
    "Limiter",
    "Outcome",
    "PoolStatus",
    "Priority",
    "Quarantine",
    "QueueLimits",
    "QueueStatus",
    "RateState",
    "Refusal",
    "Refused",
    "RequestInPieces",
    "Scheduler",
    "SlotPool",
    "SlotProbe",
    "TenantLimits",
    "Ticket",
    "TicketState",
    "UsageReservation",
]
