"""Usage records: one for each request that held a slot, stored in a database and summed up on demand."""

from __future__ import annotations

from slotgate.gateway.usage.ledger import NotRecorded, UsageLedger, UsageReport, open_ledger
from slotgate.gateway.usage.opening import store_of
from slotgate.gateway.usage.query import DEFAULT_GROUP, GROUPS, SUMS, UsageQuery, UsageTotal
from slotgate.gateway.usage.record import UsageRecord
from slotgate.gateway.usage.recorder import UsageRecorder
from slotgate.gateway.usage.store import StoreError, StoreFault, UsageRow, UsageStore

__all__ = [
    "DEFAULT_GROUP",
    "GROUPS",
    "SUMS",
    "NotRecorded",
    "StoreError",
    "StoreFault",
    "UsageLedger",
    "UsageQuery",
    "UsageRecord",
    "UsageRecorder",
    "UsageReport",
    "UsageRow",
    "UsageStore",
    "UsageTotal",
    "open_ledger",
    "store_of",
]
