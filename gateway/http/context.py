"""What is known about one request while it runs: made by the outermost middleware, read by the log.

It travels in the ASGI scope's `state`, under one key, and holds plain facts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.types import Scope

from slotgate.gateway.http.headers import Headers

__all__ = ["Caller", "RequestContext", "TenantIdentity", "context_of", "headers_of"]

_KEY = "slotgate"
_HEADERS = "slotgate.headers"


@dataclass(frozen=True, slots=True)
class TenantIdentity:
    """Who pays for a request, and what it may use."""

    name: str
    models: tuple[str, ...] = ("*",)
    max_tokens_default: int | None = None
    max_tokens_limit: int | None = None
    batch_only: bool = False
    """The tenant's ceiling is `batch`: a header cannot raise it."""
    allow_id_slot: bool = False
    isolate_cache: bool = False
    """What others asked is not found in the prompt cache by this tenant."""
    isolated: bool = False
    """What this tenant asked is not found by others: nothing of it is left in a slot."""

    def may_use(self, model: str) -> bool:
        return "*" in self.models or model in self.models


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose key was presented, and which of its keys."""

    tenant: TenantIdentity
    key: str
    """Its name, never the key."""
    digest: bytes = field(repr=False)
    expired: bool = False


ANONYMOUS = TenantIdentity("anonymous")


@dataclass(slots=True)
class RequestContext:
    """Times are seconds of the event loop's clock."""

    id: str
    began_at: float
    tenant: TenantIdentity = ANONYMOUS
    key: str | None = None
    """The name of the key that was presented; never the key."""
    key_digest: bytes = field(default=b"", repr=False)
    """To see whether the key is still good; empty where none is needed."""
    path: str = ""
    """Of the endpoint that it came through: the first of its paths."""
    status: int | None = None
    """The status that was sent; None while the response has not begun."""
    model: str | None = None
    backend: str | None = None
    outcome: str | None = None
    """How it ended, in a word; set where it is known, else derived from the status."""
    code: str | None = None
    """The error code that was answered or framed."""
    message: str = ""
    """What was said of it. It may quote what was asked, so no log has it."""
    queued_at: float | None = None
    granted_at: float | None = None
    asked_at: float | None = None
    answered_at: float | None = None
    """When the upstream's response headers came."""
    first_output_at: float | None = None
    stream: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    ended_at: float | None = None
    partial: bool = False
    """The token counts are what passed, not what the backend stated."""
    traceparent: bytes = b""
    """What the backend is told of the trace that this request is part of; empty without traces of our own."""
    headers: Headers = field(default_factory=list)
    """What the response says beyond its endpoint's own headers."""

    @property
    def trace_id(self) -> str | None:
        """Of the trace, where there is one of ours: 32 hex digits."""
        return self.traceparent.split(b"-")[1].decode() if self.traceparent else None

    @property
    def queue_s(self) -> float | None:
        """Seconds from joining the queue to the last grant."""
        if self.queued_at is None or self.granted_at is None:
            return None
        return self.granted_at - self.queued_at

    @property
    def first_output_s(self) -> float | None:
        """Seconds from the request's beginning to the first generated output."""
        return None if self.first_output_at is None else self.first_output_at - self.began_at

    @property
    def duration_s(self) -> float | None:
        """Seconds from its beginning to its end, once it is over."""
        return None if self.ended_at is None else self.ended_at - self.began_at

    @property
    def final_status(self) -> int | None:
        """The status that was sent, or 499 for a client that left; None if nothing was sent."""
        return 499 if self.outcome == "client_gone" else self.status

    @property
    def final_outcome(self) -> str:
        """`ok`, `error`, or what is known better, once it is over."""
        failed = self.code is not None or self.status is None or self.status >= 400
        return self.outcome or ("error" if failed else "ok")

    def facts(self, now: float) -> dict[str, Any]:
        """What is told about it to operators: nothing of what was said, no key. Times in milliseconds."""
        return {
            "id": self.id,
            "tenant": self.tenant.name,
            "key": self.key,
            "model": self.model,
            "backend": self.backend,
            "outcome": self.final_outcome,
            "code": self.code,
            "status": self.final_status,
            "stream": self.stream,
            "queue_ms": _ms(self.queue_s),
            "ttft_ms": _ms(self.first_output_s),
            "total_ms": _ms((self.ended_at or now) - self.began_at),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
        }

    def server_timing(self, now: float) -> bytes:
        """The header `server-timing`, as far as known: milliseconds queued, milliseconds upstream."""
        parts = []
        if self.queued_at is not None:
            parts.append(b"queue;dur=%.1f" % (((self.granted_at or now) - self.queued_at) * 1000))
        if self.asked_at is not None:
            parts.append(b"upstream;dur=%.1f" % (((self.answered_at or now) - self.asked_at) * 1000))
        return b", ".join(parts) or b"queue;dur=0.0"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def attach(scope: Scope, context: RequestContext) -> None:
    scope.setdefault("state", {})[_KEY] = context


def headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """The request's headers by name; of several with one name the last. Made once a request."""
    state = scope.setdefault("state", {})
    headers: dict[bytes, bytes] | None = state.get(_HEADERS)
    if headers is None:
        headers = state[_HEADERS] = dict(scope["headers"])
    return headers


def context_of(scope: Scope) -> RequestContext:
    """The context of a request that has passed the outermost middleware."""
    return cast("RequestContext", scope["state"][_KEY])
