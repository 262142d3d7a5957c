"""Make and recognise keys.

The gateway stores only hashes. A key has 256 random bits, so a plain sha256 is enough: it cannot be guessed,
and a salt would not make that harder. A presented key is hashed first and looked up by its digest, so the
time of the look-up reveals nothing about existing keys.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

__all__ = ["PREFIX", "KeyHolder", "KeyRing", "KnownKey", "NamedKey", "hash_key", "new_key"]

PREFIX = "sg-"
RANDOM_BYTES = 32


class NamedKey(Protocol):
    """A key with a name and an expiry date."""

    @property
    def name(self) -> str: ...
    @property
    def hash(self) -> str: ...
    @property
    def expires(self) -> datetime.date | None: ...


class KeyHolder(Protocol):
    """A tenant of the settings, with the hashes of its keys."""

    @property
    def key_hashes(self) -> tuple[str, ...]: ...
    @property
    def key(self) -> Sequence[NamedKey]: ...


Holder = TypeVar("Holder", bound=KeyHolder)


def new_key() -> str:
    """Make a key: `sg-` and 43 characters that are allowed in URLs and headers."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def hash_key(key: bytes | str) -> str:
    """Return the sha256 of a key in lower-case hexadecimal, as the configuration lists it."""
    return _digest(key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key).hex()


@dataclass(frozen=True, slots=True)
class KnownKey(Generic[Holder]):
    """A configured key with its tenant."""

    holder: Holder
    name: str
    """The configured name, or else the beginning of the hash."""
    digest: bytes = field(repr=False)
    expires: datetime.date | None = None

    def expired(self, today: datetime.date) -> bool:
        """Return True from the start of the expiry day (UTC) on."""
        return self.expires is not None and today >= self.expires


class KeyRing(Generic[Holder]):
    """All keys of one configuration. It never changes, and any bytes may be presented to it."""

    def __init__(self, tenants: Iterable[Holder], operator_key_hashes: Iterable[str] = ()) -> None:
        self._tenants = {known.digest: known for tenant in tenants for known in _keys_of(tenant)}
        self._operators = {bytes.fromhex(digest): bytes.fromhex(digest) for digest in operator_key_hashes}

    def find(self, presented: bytes) -> KnownKey[Holder] | None:
        """Return the tenant's key, which may have expired, or None for an unknown key."""
        digest = _digest(presented)
        known = self._tenants.get(digest)
        return known if hmac.compare_digest(known.digest if known else b"", digest) else None

    def holds(self, digest: bytes, today: datetime.date) -> bool:
        """Return True if this is the digest of a tenant's key that has not expired."""
        known = self._tenants.get(digest)
        return known is not None and not known.expired(today)

    def holds_operator(self, digest: bytes) -> bool:
        """Return True if this is the digest of an operator key."""
        return hmac.compare_digest(self._operators.get(digest, b""), digest)

    @property
    def has_operator(self) -> bool:
        """True if an operator key is configured. Without one the operator's endpoints are 404."""
        return bool(self._operators)

    def __repr__(self) -> str:
        return f"<KeyRing {len(self._tenants)} tenant keys, {len(self._operators)} operator keys>"


def _keys_of(tenant: Holder) -> Iterator[KnownKey[Holder]]:
    for digest in tenant.key_hashes:
        yield KnownKey(tenant, f"sha256:{digest[:8]}", bytes.fromhex(digest))
    for key in tenant.key:
        yield KnownKey(tenant, key.name, bytes.fromhex(key.hash), key.expires)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
