"""The attempts of one request: get a lease, ask its backend, and ask once more if `retries` allows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from slotgate.admission import Lease, Outcome
from slotgate.gateway.forwarding.prepared_request import PreparedRequest
from slotgate.gateway.forwarding.retries import Retries
from slotgate.gateway.http.errors import GatewayError

__all__ = ["with_retry"]

T = TypeVar("T")


async def with_retry(
    retries: Retries,
    request: PreparedRequest,
    admit: Callable[[], Awaitable[Lease]],
    ask: Callable[[Lease], Awaitable[T]],
) -> T:
    """Return the result of `ask` with a lease from `admit`.

    Both run a second time if `ask` raised a `GatewayError` that `retries` has another attempt for. The
    backstop of every lease is here: one that `ask` did not release was never used.
    """
    for is_last in (False, True):
        request.entry.lease = None  # the first attempt left nothing to charge for
        lease = request.entry.lease = await admit()
        try:
            return await ask(lease)
        except GatewayError as error:
            if not await retries.allowed(error, lease, request, is_last=is_last):
                raise
        finally:
            lease.release(Outcome.UNUSED)
    raise AssertionError("the last attempt returns or raises")
