"""Limit sign-ins with a wrong key to a few per minute and address.

An address at its limit is refused before its key is checked, so that it learns nothing more. Bearer keys are
not counted: many programs may be behind one proxy, and a wrong key of one must not lock out the others. Keys
of `slotgate keys new` have 256 random bits and cannot be guessed; the limit protects keys that people chose
themselves. This module never awaits.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final

from slotgate.admission.token_bucket import TokenBucket
from slotgate.gateway.http.errors import CapacityError

__all__ = ["A_MINUTE", "SignInLimiter"]

A_MINUTE: Final = 10
_MOST_ADDRESSES: Final = 1024
_IPV6_NETWORK: Final = 64
"""Bits of the network: one customer usually has all addresses of such a network."""


class SignInLimiter:
    """Counts wrong keys by address. It remembers the `_MOST_ADDRESSES` that were wrong most recently."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[str, TokenBucket] = {}

    def __repr__(self) -> str:
        return f"<SignInLimiter of {len(self._left)} addresses>"

    def check(self, address: str) -> None:
        """Raise `CapacityError` 429 if the address is at its limit."""
        bucket = self._left.get(_network(address))
        wait_s = bucket.wait_s(1, self._clock()) if bucket is not None else 0.0
        if wait_s > 0:
            message = "too many wrong keys were tried from this address"
            raise CapacityError(429, "rate_limited", message, retry_after_s=wait_s)

    def count(self, address: str) -> None:
        """Count a wrong key from this address."""
        now, network = self._clock(), _network(address)
        bucket = self._left.pop(network, None) or TokenBucket(A_MINUTE, now)
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
