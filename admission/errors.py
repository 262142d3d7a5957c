"""Why admission says no.

    Refused            carried to whoever asked; `.refusal` is one of the values below

Admission knows no status codes; the gateway translates each refusal once, at its border.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Refusal", "Refused"]


class Refusal(Enum):
    QUEUE_FULL = "queue_full"
    """The model's or the tenant's places, or the bytes that may wait, are taken."""
    TENANT_CONCURRENCY = "tenant_concurrency"
    """The tenant already has as many requests in the gateway as it may."""
    RATE_LIMITED = "rate_limited"
    """The tenant has used up what it may ask for in a minute."""
    QUOTA_EXCEEDED = "quota_exceeded"
    """The tenant has used up its tokens of the day."""
    QUEUE_TIMEOUT = "queue_timeout"
    """The longest wait is over."""
    NO_BACKEND = "no_backend"
    """Nothing serves this model, now or soon, or not as widely as asked."""
    DRAINING = "draining"
    """The gateway is shutting down."""


class Refused(Exception):
    """A demand was not queued, or its wait has ended.

    `detail` is a sentence for people; `retry_after_s` an estimate from the observed service rate.
    """

    def __init__(self, refusal: Refusal, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.refusal = refusal
        self.detail = detail
        self.retry_after_s = retry_after_s
