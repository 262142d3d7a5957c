"""Keys: making them, recognising them, and keeping the two that `slotgate run` needs.

A gateway knows hashes only. A key has 256 random bits, so a plain sha256 is enough: there is nothing
to guess, and no salt would make it harder. What a client presents is hashed first and looked up by its
digest, so that how long the answer takes says nothing about the keys that exist.
"""

import contextlib
import datetime
import hashlib
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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

    def is_operator(self, presented: bytes) -> bool:
        """Whether the presented key is one of the operator's."""
        return self.holds_operator(_digest(presented))

    def holds_operator(self, digest: bytes) -> bool:
        """Whether the operator's key with this digest is (still) known."""
        return hmac.compare_digest(self._operators.get(digest, b""), digest)

    @property
    def has_operator(self) -> bool:
        """Whether there is an operator at all; without one, operator endpoints do not exist."""
        return bool(self._operators)

    def __repr__(self) -> str:
        return f"<KeyRing {len(self._tenants)} tenant keys, {len(self._operators)} operator keys>"


class KeysError(Exception):
    """The keys of `slotgate run` cannot be kept or read; the text says where and why."""


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The keys of `slotgate run`: one for its clients, one for its operator."""

    client: str = field(repr=False)
    operator: str = field(repr=False)


def state_dir(environ: Mapping[str, str]) -> Path:
    """`$XDG_STATE_HOME/slotgate`; the variable counts if it is absolute (XDG Base Directory, "Basics")."""
    base = Path(environ.get("XDG_STATE_HOME", ""))
    if base.is_absolute():
        return base / "slotgate"
    return Path(environ.get("HOME") or Path.home()) / ".local" / "state" / "slotgate"


def load_or_make_keys(directory: Path) -> RunKeys:
    """The keys kept in `directory`, made at the first call; whoever calls at the same time gets the same.

    Raises `KeysError` when they cannot be kept, or when the file there is not one of ours.
    """
    path = directory / "keys.json"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        if not path.exists():
            _keep(path, RunKeys(new_key(), new_key()))
        path.chmod(0o600)
        return _parsed(path, path.read_bytes())
    except OSError as failed:
        raise KeysError(f"cannot keep keys in {path}: {failed.strerror}") from failed


def _keep(path: Path, keys: RunKeys) -> None:
    """Write the file whole or not at all. A link, unlike a rename, leaves a file that is there already."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump({"client": keys.client, "operator": keys.operator}, file)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first: its keys are the keys
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


def _parsed(path: Path, content: bytes) -> RunKeys:
    try:
        kept = json.loads(content)
        keys = RunKeys(kept["client"], kept["operator"])
    except (ValueError, TypeError, LookupError) as damaged:
        raise KeysError(f"{path} is damaged; without it, new keys are made") from damaged
    if not all(isinstance(key, str) and key.startswith(PREFIX) for key in (keys.client, keys.operator)):
        raise KeysError(f"{path} has no keys in it; without it, new keys are made")
    return keys


def _keys_of(tenant: Holder) -> Iterator[KnownKey[Holder]]:
    for digest in tenant.key_hashes:
        yield KnownKey(tenant, f"sha256:{digest[:8]}", bytes.fromhex(digest))
    for key in tenant.key:
        yield KnownKey(tenant, key.name, bytes.fromhex(key.hash), key.expires)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
