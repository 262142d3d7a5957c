"""A request within its tenant's limits: what it takes, what it gives back, and what it is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slotgate.admission import Limiter, RateState, Refused
from slotgate.gateway.forwarding.queueing import refusal
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.headers import Headers

__all__ = ["within_limits"]


@contextmanager
def within_limits(
    limiter: Limiter, context: RequestContext, tokens: float, *, prompt_tokens: float
) -> Iterator[None]:
    """`tokens` is the estimate, `prompt_tokens` the prompt's part of it. Raises `CapacityError` 429.

    A request that no backend ever answered costs nothing. Any other costs what its context says at the end; a
    prompt whose tokens the backend had no time to state counts as estimated.
    """
    tenant = context.tenant.name
    try:
        reservation = limiter.reserve(tenant, tokens)
    except Refused as refused:
        context.headers = _headers(limiter, tenant)
        raise refusal(refused) from refused
    context.headers = _headers(limiter, tenant)
    try:
        yield
    finally:
        if context.answered_at is None:
            reservation.refund()
        else:
            prompt = context.prompt_tokens or (prompt_tokens if context.partial else 0)
            reservation.settle(prompt + context.completion_tokens)


def _headers(limiter: Limiter, tenant: str) -> Headers:
    """Under the names that OpenAI gives them."""
    return [
        *_of(b"requests", limiter.requests_of(tenant)),
        *_of(b"tokens", limiter.tokens_of(tenant)),
    ]


def _of(what: bytes, state: RateState | None) -> Headers:
    if state is None:
        return []
    return [
        (b"x-ratelimit-limit-" + what, b"%d" % state.limit),
        (b"x-ratelimit-remaining-" + what, b"%d" % state.remaining),
        (b"x-ratelimit-reset-" + what, _duration(state.full_in_s)),
    ]


def _duration(seconds: float) -> bytes:
    """As OpenAI writes it: `120ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    if seconds < 60:
        return b"%gs" % round(seconds, 1)
    return b"%dm%ds" % divmod(round(seconds), 60)
