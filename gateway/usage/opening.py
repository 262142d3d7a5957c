"""Choose the store that the settings name."""

from __future__ import annotations

from slotgate.gateway.settings import UsageSettings
from slotgate.gateway.usage.postgres import PostgresStore
from slotgate.gateway.usage.sqlite import SqliteStore
from slotgate.gateway.usage.store import UsageStore

__all__ = ["store_of"]


def store_of(settings: UsageSettings) -> UsageStore | None:
    """Return the store, which is not opened yet, or None if usage is not recorded."""
    if settings.sqlite_file is not None:
        return SqliteStore(settings.sqlite_file)
    if settings.postgresql_url is not None:
        return PostgresStore(settings.postgresql_url, settings.place)
    return None
