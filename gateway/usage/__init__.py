"""Usage records: one for each request that held a slot, kept in a database, summed up on demand."""

from slotgate.gateway.usage.opening import store_of
from slotgate.gateway.usage.question import DEFAULT_GROUP, GROUPS, SUMS, Question, Total
from slotgate.gateway.usage.record import UsageRecord
from slotgate.gateway.usage.recorder import Recorder
from slotgate.gateway.usage.store import Row, StoreError, StoreFault, UsageStore
from slotgate.gateway.usage.usage import NotRecorded, Report, Usage, keeping

__all__ = [
    "DEFAULT_GROUP",
    "GROUPS",
    "SUMS",
    "NotRecorded",
    "Question",
    "Recorder",
    "Report",
    "Row",
    "StoreError",
    "StoreFault",
    "Total",
    "Usage",
    "UsageRecord",
    "UsageStore",
    "keeping",
    "store_of",
]
