"""Keys: made and recognised."""

from __future__ import annotations

import datetime
import hashlib
import time
from dataclasses import dataclass
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.auth.keys import KeyRing, hash_key, new_key
from slotgate.gateway.settings import TenantKeySettings


@dataclass(frozen=True)
class Team:
    name: str
    key_hashes: tuple[str, ...]
    key: tuple[TenantKeySettings, ...] = ()


def team(name: str, *keys: str) -> Team:
    return Team(name, tuple(hash_key(key) for key in keys))


def holder_of(ring: KeyRing[Team], key: bytes) -> Team | None:
    known = ring.find(key)
    return known.holder if known is not None else None


def test_a_key_has_a_name_and_an_expiry_date() -> None:
    named = TenantKeySettings(name="ci", hash=hash_key("key-2"), expires=datetime.date(2027, 1, 1))
    ring = KeyRing([Team("a", (hash_key("key-1"),), (named,))])
    plain, ci = ring.find(b"key-1"), ring.find(b"key-2")
    assert plain is not None
    assert ci is not None
    assert (plain.name, ci.name) == (f"sha256:{hash_key('key-1')[:8]}", "ci")
    last, first = datetime.date(2026, 12, 31), datetime.date(2027, 1, 1)
    assert [ci.expired(day) for day in (last, first)] == [False, True]
    assert [ring.holds(ci.digest, day) for day in (last, first)] == [True, False]
    assert ring.holds(plain.digest, datetime.date.max)
    assert not ring.holds(b"another", last)
    assert "key-1" not in repr(plain)


def test_a_key_begins_with_sg_and_is_allowed_in_a_header() -> None:
    key = new_key()
    assert key.startswith("sg-")
    assert len(key) >= 35
    assert key.isascii()
    assert key.replace("-", "").replace("_", "").isalnum()


def test_no_two_keys_are_the_same() -> None:
    assert len({new_key() for _ in range(1000)}) == 1000


def test_a_hash_is_the_sha256_of_the_key_s_bytes() -> None:
    assert hash_key("sg-é") == hash_key("sg-é".encode()) == hashlib.sha256("sg-é".encode()).hexdigest()
    assert len(hash_key("\udc80")) == 64


def test_a_key_identifies_its_tenant() -> None:
    a, b = team("a", "key-1", "key-2"), team("b", "key-3")
    ring = KeyRing([a, b])
    assert [holder_of(ring, key) for key in (b"key-1", b"key-2", b"key-3")] == [a, a, b]


@pytest.mark.parametrize(
    "presented", [b"", b"key-10", b"KEY-1", b" key-1", b"key-1\0", b"\xff\xfe", b"x" * 10**6]
)
def test_other_bytes_identify_no_tenant(presented: bytes) -> None:
    ring = KeyRing([team("a", "key-1")], [hash_key("operator")])
    assert ring.find(presented) is None
    assert not ring.holds_operator(sha256(presented).digest())


@given(st.binary())
def test_no_presented_bytes_raise(presented: bytes) -> None:
    assert KeyRing([team("a", "a key that is not drawn")]).find(presented) is None


def test_a_hash_is_not_accepted_as_a_key() -> None:
    assert KeyRing([team("a", "key-1")]).find(hash_key("key-1").encode()) is None


def test_operator_keys_and_tenant_keys_are_kept_apart() -> None:
    ring = KeyRing([team("a", "key-1")], [hash_key("operator")])
    assert ring.holds_operator(sha256(b"operator").digest())
    assert not ring.holds_operator(sha256(b"key-1").digest())
    assert ring.find(b"operator") is None
    assert ring.has_operator
    assert not KeyRing([team("a", "key-1")]).has_operator


def test_a_look_up_among_ten_thousand_keys_is_fast() -> None:
    """A look-up takes about a microsecond.

    The bound is generous and on CPU time, because the machine may be busy.
    """
    ring = KeyRing([Team(f"t{n}", (hash_key(f"key-{n}"),)) for n in range(10_000)])
    started = time.process_time()
    for n in range(0, 10_000, 10):
        assert ring.find(f"key-{n}".encode()) is not None
    assert time.process_time() - started < 0.1


def test_repr_of_a_key_ring_shows_no_key() -> None:
    ring = KeyRing([team("a", "key-1", "key-2")], [hash_key("operator")])
    assert repr(ring) == "<KeyRing 2 tenant keys, 1 operator keys>"
