"""The books: what a request used is counted, charged and recorded once, in one place, however it ends.

    BookEntry (filled while the request runs) --its end--> Charge --> context, limits, estimator

| how it ended                                                      | requests | tokens              |
|-------------------------------------------------------------------|----------|---------------------|
| it never reached a backend                                        | 0        | 0                   |
| the backend failed or was silent, and nothing of an answer passed | 0        | 0                   |
| the backend refused it, for a fault of the client's               | 1        | 0                   |
| anything else: finished, cut short, left by its client, cancelled | 1        | prompt + completion |

A prompt whose tokens the backend has not stated counts as estimated. The usage record, the metrics, the log
and the limits all read the same numbers from the request's context.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from slotgate.admission import Lease, Limiter, Outcome, RateState, Refused, UsageReservation
from slotgate.gateway.api.prompt_size import PromptSize
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.forwarding.queueing import refusal
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.errors import GatewayError, UpstreamAnswer, UpstreamError
from slotgate.gateway.http.headers import Headers

__all__ = ["BookEntry", "Charge", "charged", "rate_headers", "slot_free_request"]


_LONGEST_ANSWER = 1_000_000
"""A higher limit of tokens limits nothing, because no context is that long."""


class Charge(Enum):
    """The part of a request that its tenant is charged for."""

    NOTHING = "nothing"
    REQUEST = "request"
    WORK = "work"


@dataclass(slots=True)
class BookEntry:
    """The known use of one request while it runs."""

    usage: TokenUsage
    prompt: PromptSize
    expected_prompt: float
    """Estimated prompt tokens, for a prompt whose count is never stated."""
    lease: Lease | None = None
    """The last lease that the request got; None before the first one."""
    answer_limit: int | None = None
    """The limit of tokens for each answer, if the tenant's day leaves fewer than the request asks for."""
    least_prompt: float = 0.0
    """Estimated tokens of the prompt's text. Tokens of pictures and audio are guessed too roughly."""
    open_ended: bool = False
    """True if the request sets no limit for its answers."""
    failure: GatewayError | None = None
    """The error with which the request ended, also if it was sent inside a stream."""

    @property
    def charge(self) -> Charge:
        """The part that the tenant is charged for. Valid once the lease has been released."""
        if self.lease is None or self.lease.outcome is Outcome.UNUSED:
            return Charge.NOTHING
        if self.usage.finished or self.usage.completed:
            return Charge.WORK
        match self.failure:
            case UpstreamAnswer(status=status) if status < 500:
                return Charge.REQUEST
            case UpstreamError(code="total_timeout"):
                return Charge.WORK  # the backend worked for as long as it was allowed to
            case UpstreamError() | UpstreamAnswer():
                return Charge.NOTHING
        return Charge.WORK

    @property
    def stated_prompt(self) -> int | None:
        """The prompt tokens as the backend stated them, or None."""
        return self.usage.prompt_tokens

    def state(self, context: RequestContext) -> int:
        """Write the counts into the context. Returns the tokens to charge."""
        if self.charge is not Charge.WORK:
            return 0
        usage = self.usage
        stated = usage.prompt_tokens
        context.prompt_tokens = max(1, round(self.expected_prompt)) if stated is None else stated
        context.cached_tokens = usage.cached_tokens
        context.completion_tokens = usage.completed
        context.reasoning_tokens = usage.reasoning_tokens
        context.partial = not usage.finished
        context.estimated = stated is None or usage.extrapolated
        return context.prompt_tokens + context.completion_tokens


@contextmanager
def charged(limiter: Limiter, context: RequestContext, entry: BookEntry, estimate: float) -> Iterator[None]:
    """Reserve the estimated tokens, and settle at the end of the block with what the entry says.

    Raises `CapacityError` 429 if a limit of the tenant is in the way; then the block is not entered.
    """
    tenant = context.tenant.name
    try:
        reservation = limiter.reserve(tenant, estimate, entry.least_prompt)
    except Refused as refused:
        context.headers = rate_headers(limiter, tenant)
        raise refusal(refused) from refused
    context.headers = rate_headers(limiter, tenant)
    entry.answer_limit = _answer_limit(entry, reservation, estimate)
    try:
        yield
    except GatewayError as error:
        entry.failure = error
        raise
    finally:
        tokens = entry.state(context)
        if entry.charge is Charge.NOTHING:
            reservation.refund()
        else:
            reservation.settle(tokens)
        entry.failure = None  # its traceback would keep the request alive


def _answer_limit(entry: BookEntry, reservation: UsageReservation, estimate: float) -> int | None:
    """Return the most tokens of each answer, so that the tenant's day is kept; None: no limit."""
    rest = reservation.day_left
    if rest is None or not (entry.open_ended or reservation.of_day < estimate):
        return None
    limit = max(1, int((rest - entry.expected_prompt) / entry.usage.parts_expected))
    return limit if limit < _LONGEST_ANSWER else None


@contextmanager
def slot_free_request(limiter: Limiter, context: RequestContext) -> Iterator[None]:
    """Count a request that needs no slot. One that no backend has served or refused is given back.

    Raises `CapacityError` 429 if there were too many in this minute; then the block is not entered.
    """
    tenant = context.tenant.name
    try:
        limiter.take_slot_free_request(tenant)
    except Refused as refused:
        raise refusal(refused) from refused
    finally:
        context.headers = _limit_headers(b"requests", limiter.slot_free_requests_of(tenant))
    try:
        yield
    except GatewayError as error:
        if not isinstance(error, UpstreamAnswer) or error.status >= 500:
            limiter.give_back_slot_free_request(tenant)
        raise


def rate_headers(limiter: Limiter, tenant: str) -> Headers:
    """Return the rate-limit headers, which have OpenAI's names."""
    return [
        *_limit_headers(b"requests", limiter.requests_of(tenant)),
        *_limit_headers(b"tokens", limiter.tokens_of(tenant)),
    ]


def _limit_headers(name: bytes, state: RateState | None) -> Headers:
    if state is None:
        return []
    return [
        (b"x-ratelimit-limit-" + name, b"%d" % state.limit),
        (b"x-ratelimit-remaining-" + name, b"%d" % state.remaining),
        (b"x-ratelimit-reset-" + name, _duration(state.full_in_s)),
    ]


def _duration(seconds: float) -> bytes:
    """A duration as OpenAI writes it: `120ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    if seconds < 60:
        return b"%gs" % round(seconds, 1)
    return b"%dm%ds" % divmod(round(seconds), 60)
