"""The entrance of a request: limits that are looked at when its head has come, before its body is read.

From here on the request counts until its answer is delivered: as one of its tenant's `max_concurrent`, and
with its body in the budget of all bodies (`max_queue_bytes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from starlette.types import Scope

from slotgate.admission import BodyBudget, HeldBody, Refusal, Refused
from slotgate.gateway.forwarding.books import rate_headers
from slotgate.gateway.forwarding.queueing import refusal
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.http.context import RequestContext, headers_of

__all__ = ["arriving", "body_held", "entered"]

T = TypeVar("T")


@contextmanager
def entered(runtime: Runtime, context: RequestContext, scope: Scope) -> Iterator[HeldBody]:
    """Let a request that takes a slot in for the time of the block. Yield the place of its body.

    Raises `CapacityError`: 503 while the gateway shuts down, 429 if a limit of the tenant is in the way or
    too many bodies are held. Then the block is not entered.
    """
    tenant = context.tenant.name
    with ExitStack() as stack:
        with _refusals():
            if runtime.scheduler.draining:
                raise Refused(Refusal.DRAINING, "the gateway is shutting down")
            context.headers = rate_headers(runtime.limiter, tenant)
            runtime.limiter.check(tenant)
            stack.enter_context(runtime.concurrency.entered(tenant))
        yield stack.enter_context(body_held(runtime.bodies, context, scope))


@contextmanager
def body_held(bodies: BodyBudget, context: RequestContext, scope: Scope) -> Iterator[HeldBody]:
    """Make a place for the body of a request, for the time of the block. Raises `CapacityError` 429."""
    announced = headers_of(scope).get(b"content-length", b"0")
    with _refusals():
        body = bodies.open(context.tenant.name, int(announced) if announced.isdigit() else 0)
    try:
        yield body
    finally:
        body.release()


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn refusals into errors with a status."""
    try:
        yield
    except Refused as refused:
        raise refusal(refused) from refused


async def arriving(body: HeldBody, reading: Callable[[Callable[[int], None]], Awaitable[T]]) -> T:
    """Return the result of `reading`, which reads a body and reports the size of each piece.

    Raises `CapacityError` 429 if the body does not fit, or has to give way to others while it arrives.
    """
    given_up: list[Refused] = []
    loop = asyncio.get_running_loop()
    with _refusals():
        try:
            async with asyncio.timeout(None) as limit:

                def give_up(refused: Refused) -> None:
                    given_up.append(refused)
                    limit.reschedule(loop.time())

                with body.given_up_by(give_up):
                    return await reading(body.grow)
        except TimeoutError as error:
            if not given_up:
                raise
            raise given_up.pop() from error
