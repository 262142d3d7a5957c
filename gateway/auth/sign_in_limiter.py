"""How often somebody may sign in with a wrong key: a few times a minute from one address.

An address that has used this up is refused before its key is looked at, so that nothing more can be learnt.
Keys that come as bearer are not counted: programs present them, many behind one proxy, and one that is wrong
must not shut out the others. What `slotgate keys new` makes has 256 random bits and cannot be guessed at any
pace; this is for keys that people made up. This module never awaits.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final

from slotgate.admission.limits import Bucket
from slotgate.gateway.http.errors import CapacityError

__all__ = ["A_MINUTE", "SignInLimiter"]

A_MINUTE: Final = 10
_MOST_ADDRESSES: Final = 1024
_IPV6_NETWORK: Final = 64
"""Whoever has one address of such a network has all of them."""


class SignInLimiter:
    """Counts by address; of those that were not heard of for longest the oldest are forgotten."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[str, Bucket] = {}

    def __repr__(self) -> str:
        return f"<SignInLimiter of {len(self._left)} addresses>"

    def check(self, address: str) -> None:
        """Raises `CapacityError` 429 for an address that has to wait."""
        bucket = self._left.get(_network(address))
        wait_s = bucket.wait_s(1, self._clock()) if bucket is not None else 0.0
        if wait_s > 0:
            message = "too many wrong keys were tried from this address"
            raise CapacityError(429, "rate_limited", message, retry_after_s=wait_s)

    def count(self, address: str) -> None:
        """A wrong key came from there."""
        now, network = self._clock(), _network(address)
        bucket = self._left.pop(network, None) or Bucket(A_MINUTE, now)
        bucket.take(1, now)
        self._left[network] = bucket
        while len(self._left) > _MOST_ADDRESSES:
            del self._left[next(iter(self._left))]


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if parsed.version == 4:
        return str(parsed)
    return str(ipaddress.ip_network((int(parsed), _IPV6_NETWORK), strict=False))
