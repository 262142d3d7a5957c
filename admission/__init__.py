"""Admission: slots, leases and the fair queue. Decisions over plain data; standard library only, no HTTP.

A request asks with a `Demand`, waits with a `Ticket`, works under a `Lease`. Start reading in
`scheduler.py`; `quarantine.py` holds the rule for slots whose work was abandoned.
"""

from admission.alarm import Alarm
from admission.demand import Demand, Priority
from admission.errors import Refusal, Refused
from admission.lease import Lease, LeaseState, Outcome
from admission.limits import Limiter, RateState, Reservation, TenantLimits
from admission.pool import PoolStatus, SlotPool
from admission.quarantine import SETTLE_S, Probe, Quarantine
from admission.queue import AdmissionQueue
from admission.scheduler import QueueLimits, QueueStatus, Scheduler
from admission.ticket import Ticket, TicketState

__all__ = [
    "SETTLE_S",
    "AdmissionQueue",
    "Alarm",
    "Demand",
    "Lease",
    "LeaseState",
    "Limiter",
    "Outcome",
    "PoolStatus",
    "Priority",
    "Probe",
    "Quarantine",
    "QueueLimits",
    "QueueStatus",
    "RateState",
    "Refusal",
    "Refused",
    "Reservation",
    "Scheduler",
    "SlotPool",
    "TenantLimits",
    "Ticket",
    "TicketState",
]
