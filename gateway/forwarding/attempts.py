"""The attempts of one request: get a lease, ask its backend, and retry once if that backend did not begin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from slotgate.admission import Lease, Outcome
from slotgate.gateway.backends.fleet import Fleet
from slotgate.gateway.forwarding.books import BookEntry
from slotgate.gateway.http.errors import GatewayError

__all__ = ["with_retry"]

T = TypeVar("T")


async def with_retry(
    fleet: Fleet,
    entry: BookEntry,
    admit: Callable[[], Awaitable[Lease]],
    ask: Callable[[Lease], Awaitable[T]],
) -> T:
    """Return the result of `ask` with a lease from `admit`.

    Both run a second time if `ask` raised a `GatewayError` and the fleet knows that the first backend had not
    begun the work. The backstop of every lease is here: one that `ask` did not release was never used.
    """
    for is_last in (False, True):
        entry.lease = None  # the first attempt left nothing to charge for
        lease = entry.lease = await admit()
        try:
            return await ask(lease)
        except GatewayError as error:
            if is_last or not fleet.may_retry(error, lease):
                raise
        finally:
            lease.release(Outcome.UNUSED)
    raise AssertionError("the last attempt returns or raises")
