"""Find the tenant or operator that a presented key belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from slotgate.gateway.auth.keys import KeyRing
from slotgate.gateway.http.context import Caller, TenantIdentity
from slotgate.gateway.settings import Settings, TenantSettings

__all__ = ["Identities", "identities_of"]


@dataclass(frozen=True, slots=True)
class Identities:
    """The questions that a gateway asks about keys. Built anew for each configuration."""

    identify: Callable[[bytes], Caller | None]
    """Return the caller whose key this is, or None for an unknown key."""
    is_operator: Callable[[bytes], bool] | None = None
    """Return True for the digest of an operator key. None if no operator key is configured."""
    is_valid: Callable[[bytes], bool] = lambda _: True
    """Return True for the digest of a tenant's key that is still configured and has not expired."""


def identities_of(settings: Settings) -> Identities:
    """Build the key look-ups for a configuration."""
    ring = KeyRing(settings.tenants, settings.server.operator_key_hashes)
    tenants = {tenant.name: _tenant_identity(tenant) for tenant in settings.tenants}

    def identify(key: bytes) -> Caller | None:
        known = ring.find(key)
        if known is None:
            return None
        expired = known.expired(datetime.now(UTC).date())
        return Caller(tenants[known.holder.name], known.name, known.digest, expired)

    def is_valid(digest: bytes) -> bool:
        return ring.holds(digest, datetime.now(UTC).date())

    return Identities(identify, ring.holds_operator if ring.has_operator else None, is_valid)


def _tenant_identity(tenant: TenantSettings) -> TenantIdentity:
    return TenantIdentity(
        tenant.name,
        models=tenant.models,
        max_tokens_default=tenant.max_tokens_default,
        max_tokens_limit=tenant.max_tokens_limit,
        batch_only=tenant.priority == "batch",
        allow_id_slot=tenant.allow_id_slot,
        isolate_cache=bool(tenant.isolate_cache),
        isolated=tenant.isolate_cache is True,
    )
