"""The books: each ending is charged as the table in `forwarding/books.py` says."""

from __future__ import annotations

import datetime
from contextlib import suppress

import pytest

from slotgate.admission import Demand, Lease, Limiter, Outcome, TenantLimits
from slotgate.gateway.api.prompt_size import PromptSize
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.forwarding.books import BookEntry, Charge, charged, slot_free_request
from slotgate.gateway.http.context import RequestContext, TenantIdentity
from slotgate.gateway.http.errors import (
    CapacityError,
    ClientError,
    ClientGone,
    GatewayError,
    UpstreamAnswer,
    UpstreamError,
    upstream_timeout,
)

EXPECTED = 100.0
NOTHING = (0, 0, False, False)

cancelled = ClientError("cancelled", "cancelled", status=409)
draining = CapacityError(503, "draining", "draining")
unreachable = UpstreamError("upstream_unreachable", "unreachable", retry_safe=True)
truncated = UpstreamError("upstream_truncated", "truncated")
prompt_too_long = UpstreamAnswer(400, {"message": "too long"})
crashed = UpstreamAnswer(500, {"message": "crashed"})


def limiter() -> Limiter:
    made = Limiter(lambda: 0.0, lambda: datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
    made.configure({"a": TenantLimits(requests_per_minute=10, tokens_per_day=10_000)})
    return made


def lease(outcome: Outcome) -> Lease:
    made = Lease(
        Demand("a", "m"),
        pool_name="gpu",
        clock=lambda: 0.0,
        on_release=lambda _: None,
    )
    made.release(outcome)
    return made


def usage(deltas: int = 0, *, stated: bool = False, finished: bool = False) -> TokenUsage:
    made = TokenUsage()
    made.deltas = deltas
    if stated:
        made.read({"usage": {"prompt_tokens": 7, "completion_tokens": deltas}})
    if finished:
        made.settle()
    return made


ENDINGS: dict[str, tuple[Outcome | None, TokenUsage, Exception | None, Charge, tuple[int, int, bool, bool]]]
ENDINGS = {
    # prompt, completion, partial, estimated
    "left in the queue": (None, usage(), ClientGone(), Charge.NOTHING, NOTHING),
    "refused by the queue": (None, usage(), draining, Charge.NOTHING, NOTHING),
    "never sent": (Outcome.UNUSED, usage(), unreachable, Charge.NOTHING, NOTHING),
    "finished": (
        Outcome.FINISHED,
        usage(5, stated=True, finished=True),
        None,
        Charge.WORK,
        (7, 5, False, False),
    ),
    "finished, nothing stated": (
        *(Outcome.FINISHED, usage(5, finished=True), None),
        *(Charge.WORK, (100, 5, False, True)),
    ),
    "left in prefill": (Outcome.ABANDONED, usage(), ClientGone(), Charge.WORK, (100, 0, True, True)),
    "left in decode": (Outcome.ABANDONED, usage(5), ClientGone(), Charge.WORK, (100, 5, True, True)),
    "left in decode, prompt stated": (
        *(Outcome.ABANDONED, usage(5, stated=True), ClientGone()),
        *(Charge.WORK, (7, 5, True, False)),
    ),
    "cancelled": (Outcome.ABANDONED, usage(5), cancelled, Charge.WORK, (100, 5, True, True)),
    "drained": (Outcome.ABANDONED, usage(5), draining, Charge.WORK, (100, 5, True, True)),
    "truncated": (Outcome.ABANDONED, usage(5), truncated, Charge.WORK, (100, 5, True, True)),
    "truncated before anything passed": (Outcome.ABANDONED, usage(), truncated, Charge.NOTHING, NOTHING),
    "idle": (
        Outcome.ABANDONED,
        usage(5),
        upstream_timeout("idle_timeout"),
        Charge.WORK,
        (100, 5, True, True),
    ),
    "no first byte": (
        *(Outcome.ABANDONED, usage(), upstream_timeout("first_byte_timeout")),
        *(Charge.NOTHING, NOTHING),
    ),
    "too long, nothing passed": (
        *(Outcome.ABANDONED, usage(), upstream_timeout("total_timeout")),
        *(Charge.WORK, (100, 0, True, True)),
    ),
    "client's fault": (Outcome.REFUSED, usage(), prompt_too_long, Charge.REQUEST, NOTHING),
    "backend's fault": (Outcome.REFUSED, usage(), crashed, Charge.NOTHING, NOTHING),
    "error inside the stream": (Outcome.ABANDONED, usage(5), crashed, Charge.WORK, (100, 5, True, True)),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("framed", [False, True], ids=["raised", "told inside the stream"])
def test_ending_is_charged_and_stated(ending: str, framed: bool) -> None:
    outcome, counts, failure, charge, stated = ENDINGS[ending]
    entry = BookEntry(counts, PromptSize(400), EXPECTED, lease(outcome) if outcome else None)
    context, limits = RequestContext("id", 0.0, TenantIdentity("a")), limiter()
    with suppress(GatewayError, ClientGone), charged(limits, context, entry, 500):
        if isinstance(failure, GatewayError) and framed:
            entry.failure = failure
        elif failure is not None:
            raise failure
    told = context.prompt_tokens, context.completion_tokens, context.partial, context.estimated
    assert told == stated
    state = limits.requests_of("a")
    assert state is not None
    assert state.remaining == (10 if charge is Charge.NOTHING else 9)
    assert (limits.used_today("a"), limits.reserved_today("a")) == (stated[0] + stated[1], 0)
    assert entry.failure is None, "an error keeps its traceback, and with it the request's body"


def test_slot_free_request_counts_unless_the_backend_failed_to_serve_it() -> None:
    limits, context = limiter(), RequestContext("id", 0.0, TenantIdentity("a"))

    def left() -> int:
        state = limits.slot_free_requests_of("a")
        assert state is not None
        return state.remaining

    with slot_free_request(limits, context):
        pass
    assert left() == 9
    for failure in (truncated, crashed, CapacityError(503, "no_backend", "loading")):
        with pytest.raises(GatewayError), slot_free_request(limits, context):
            raise failure
        assert left() == 9
    with pytest.raises(UpstreamAnswer), slot_free_request(limits, context):
        raise prompt_too_long
    assert left() == 8
    for _ in range(8):
        with slot_free_request(limits, context):
            pass
    with pytest.raises(CapacityError) as refused, slot_free_request(limits, context):
        pass
    assert (refused.value.status, refused.value.code) == (429, "rate_limited")
    assert (b"x-ratelimit-remaining-requests", b"0") in context.headers
