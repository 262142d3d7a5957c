"""The reasons for which admission refuses a demand.

Admission knows no status codes. The gateway translates each refusal into an HTTP error in one place.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["Refusal", "Refused"]


class Refusal(Enum):
    QUEUE_FULL = "queue_full"
    """The queue has no room, for another ticket of this model or tenant, or for the bytes of its body."""
    TENANT_CONCURRENCY = "tenant_concurrency"
    """The tenant has as many requests in the gateway as it may have."""
    RATE_LIMITED = "rate_limited"
    """The tenant has used up its requests or tokens of a minute."""
    QUOTA_EXCEEDED = "quota_exceeded"
    """The tenant has used up its tokens of the day."""
    QUEUE_TIMEOUT = "queue_timeout"
    """The request has waited as long as its priority allows."""
    NO_BACKEND = "no_backend"
    """No backend serves this model, or none has as many slots as the demand needs."""
    DRAINING = "draining"
    """The gateway is shutting down."""


class Refused(Exception):
    """Raised for a demand that is not queued.

    `detail` is a sentence for people. `retry_after_s` is an estimate from the observed service rate.
    """

    def __init__(self, refusal: Refusal, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.refusal = refusal
        self.detail = detail
        self.retry_after_s = retry_after_s
