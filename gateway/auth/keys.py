"""Keys: making them and recognising them.

A gateway knows hashes only. A key has 256 random bits, so a plain sha256 is enough: there is nothing
to guess, and no salt would make it harder. What a client presents is hashed first and looked up by its
digest, so that how long the answer takes says nothing about the keys that exist.
"""

import datetime
import hashlib
import hmac
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

PREFIX = "sg-"
RANDOM_BYTES = 32


class NamedKey(Protocol):
    """A key with a name and an end."""

    @property
    def name(self) -> str: ...
    @property
    def hash(self) -> str: ...
    @property
    def expires(self) -> datetime.date | None: ...


class KeyHolder(Protocol):
    """Whoever has keys, by their hashes: a tenant of the settings."""

    @property
    def key_hashes(self) -> tuple[str, ...]: ...
    @property
    def key(self) -> Sequence[NamedKey]: ...


Holder = TypeVar("Holder", bound=KeyHolder)


def new_key() -> str:
    """A new key: `sg-` and 43 characters that fit into URLs and headers."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def hash_key(key: bytes | str) -> str:
    """The sha256 of a key in lower-case hexadecimal, as the configuration lists it."""
    return _digest(key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key).hex()


@dataclass(frozen=True, slots=True)
class KnownKey(Generic[Holder]):
    holder: Holder
    name: str
    """The configured one, or the beginning of the hash."""
    digest: bytes = field(repr=False)
    expires: datetime.date | None = None

    def expired(self, today: datetime.date) -> bool:
        """A key is good until the day it expires begins (UTC)."""
        return self.expires is not None and today >= self.expires


class KeyRing(Generic[Holder]):
    """Whose key it is. Built once from a configuration, never changed; any bytes may be presented."""

    def __init__(self, tenants: Iterable[Holder], operator_key_hashes: Iterable[str] = ()) -> None:
        self._tenants = {known.digest: known for tenant in tenants for known in _keys_of(tenant)}
        self._operators = {bytes.fromhex(digest): bytes.fromhex(digest) for digest in operator_key_hashes}

    def find(self, presented: bytes) -> KnownKey[Holder] | None:
        """The tenant's key that this is, if it is one; it may have expired."""
        digest = _digest(presented)
        known = self._tenants.get(digest)
        return known if hmac.compare_digest(known.digest if known else b"", digest) else None

    def holds(self, digest: bytes, today: datetime.date) -> bool:
        """Whether the tenant's key with this digest is (still) known and has not expired."""
        known = self._tenants.get(digest)
        return known is not None and not known.expired(today)

    def holds_operator(self, digest: bytes) -> bool:
        """Whether the operator's key with this digest is (still) known."""
        return hmac.compare_digest(self._operators.get(digest, b""), digest)

    @property
    def has_operator(self) -> bool:
        """Whether there is an operator at all; without one, operator endpoints do not exist."""
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
