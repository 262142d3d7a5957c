"""The usage record of one request that held a slot.

It is made from the context when the request has ended.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import NamedTuple

from slotgate.gateway.http.context import RequestContext

__all__ = ["UsageRecord"]

_MOST = 2**53
"""Counts come from backends. A larger count fits neither the databases nor JSON."""


class UsageRecord(NamedTuple):
    """`key`, `backend`, `queue_ms`, `ttft_ms` and `code` are None if the request has none.

    `partial` is True if the answer ended early: then the completion tokens are those that were forwarded.
    `estimated` is True if the backend did not state a count, of the prompt or of some choices.
    """

    ended_at: float
    """Seconds since 1970, UTC."""
    request_id: str
    tenant: str
    key: str | None
    model: str
    backend: str | None
    path: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    partial: bool
    estimated: bool
    queue_ms: float | None
    ttft_ms: float | None
    duration_ms: float
    status: int
    outcome: str
    code: str | None

    @classmethod
    def of(cls, context: RequestContext, ended_at: float) -> UsageRecord:
        """Make the record of a request that has ended. `status` is 0 if nothing was sent."""
        return cls(
            ended_at=ended_at,
            request_id=context.id,
            tenant=context.tenant.name,
            key=context.key,
            model=(context.model or "").replace("\0", ""),  # PostgreSQL refuses NUL in text
            backend=context.backend,
            path=context.path,
            prompt_tokens=min(context.prompt_tokens, _MOST),
            cached_tokens=min(context.cached_tokens, _MOST),
            completion_tokens=min(context.completion_tokens, _MOST),
            reasoning_tokens=min(context.reasoning_tokens, _MOST),
            partial=context.partial,
            estimated=context.estimated,
            queue_ms=_ms(context.queue_s),
            ttft_ms=_ms(context.first_output_s),
            duration_ms=_ms(context.duration_s) or 0.0,
            status=context.final_status or 0,
            outcome=context.final_outcome,
            code=context.code,
        )

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.ended_at, UTC)

    @property
    def day(self) -> date:
        """The UTC day on which the request ended. Its tokens count for this day."""
        return self.time.date()


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
