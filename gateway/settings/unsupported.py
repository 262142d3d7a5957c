"""Settings that exist and whose feature does not: every value but the default is refused.

When the feature is built, delete its row of `UNSUPPORTED`: nothing else has to change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from slotgate.gateway.settings.document import Settings
from slotgate.gateway.settings.faults import Finding
from slotgate.gateway.settings.places import Loc
from slotgate.gateway.settings.schema import keys
from slotgate.gateway.settings.values import Table

__all__ = ["UNSUPPORTED", "WITHOUT_EFFECT", "unsupported_findings"]

UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "admission.store": 'slots are counted in one process, so the only store is "memory"',
    }
)
"""Setting -> why it is refused."""

WITHOUT_EFFECT = frozenset({"admission.on_store_loss", "admission.lease_ttl_s"})
"""Settings that are accepted and do nothing, because they belong to a feature in `UNSUPPORTED`."""


def unsupported_findings(settings: Settings, refused: Mapping[str, str] = UNSUPPORTED) -> Iterator[Finding]:
    """Yield a finding for every setting of `refused` whose value is not its default."""
    for place, reason in refused.items():
        top, _, key = place.partition(".")
        for loc, table in _tables(settings, top) if key else [((), settings)]:
            if _differs(table, key or top):
                yield Finding((*loc, key or top), f"is not supported yet: {reason}")


def _tables(settings: Settings, top: str) -> Iterator[tuple[Loc, Table]]:
    value = _value(settings, top)
    if isinstance(value, Table):
        yield (top,), value
        return
    for index, table in enumerate(value if isinstance(value, tuple) else ()):
        yield (top, index), table


def _differs(table: Table, key: str) -> bool:
    default: object = keys(type(table))[key].default
    return bool(_value(table, key) != default)


def _value(table: Table, key: str) -> object:
    names = {field.alias or name: name for name, field in type(table).model_fields.items()}
    return getattr(table, names[key])
