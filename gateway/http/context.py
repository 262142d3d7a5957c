"""The context of a request: plain facts that the layers collect while it runs.

The outermost middleware makes it and stores it in the ASGI scope's `state`. Log, metrics, usage records and
traces read it when the request has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.types import Scope

from slotgate.gateway.http.headers import Headers

__all__ = ["Caller", "RequestContext", "TenantIdentity", "attach", "context_of", "headers_of"]

_KEY = "slotgate"
_HEADERS = "slotgate.headers"


@dataclass(frozen=True, slots=True)
class TenantIdentity:
    """The tenant of a request, and what it may use."""

    name: str
    models: tuple[str, ...] = ("*",)
    max_tokens_default: int | None = None
    max_tokens_limit: int | None = None
    batch_only: bool = False
    """The tenant's priority is `batch`; a header cannot raise it."""
    allow_id_slot: bool = False
    isolate_cache: bool = False
    """The tenant's requests do not use the prompt cache, so they find nothing that others asked."""
    isolated: bool = False
    """The slots that the tenant used are erased, so others find nothing that it asked."""

    def may_use(self, model: str) -> bool:
        return "*" in self.models or model in self.models


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant and the key that a client presented."""

    tenant: TenantIdentity
    key: str
    """The key's name, never the key itself."""
    digest: bytes = field(repr=False)
    expired: bool = False


ANONYMOUS = TenantIdentity("anonymous")


@dataclass(slots=True)
class RequestContext:
    """The facts of one request. Times are seconds of the event loop's clock, None until the event happens."""

    id: str
    began_at: float
    tenant: TenantIdentity = ANONYMOUS
    key: str | None = None
    """The name of the presented key, never the key itself."""
    key_digest: bytes = field(default=b"", repr=False)
    """A reload ends waiting requests whose digest is no longer known. Empty if no key was needed."""
    path: str = ""
    """The first path of its endpoint. Aliases of a path are one path in metrics."""
    status: int | None = None
    """The status that was sent, or None while the response has not begun."""
    model: str | None = None
    backend: str | None = None
    """The last backend that was asked for it."""
    outcome: str | None = None
    """The end of the request in one word. If no layer sets it, `final_outcome` derives it from the status."""
    code: str | None = None
    """The code of the error that was sent, as an answer or inside the stream."""
    message: str = ""
    """The message of that error. It may quote the request, so it is never logged."""
    queued_at: float | None = None
    granted_at: float | None = None
    """The end of the last wait in the queue; None again during a wait for a second attempt."""
    asked_at: float | None = None
    answered_at: float | None = None
    """The time at which the backend's response headers arrived."""
    first_output_at: float | None = None
    stream: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    ended_at: float | None = None
    reasoning_tokens: int = 0
    """The completion tokens that were reasoning, as far as they can be told apart."""
    partial: bool = False
    """True if the answer ended early; the completion tokens are those that were forwarded."""
    estimated: bool = False
    """True if the backend did not state a count, of the prompt or of some choices, and it is an estimate."""
    via: bytes = b""
    """The marks of the gateways that the request has passed, this one last; the backend is told them."""
    traceparent: bytes = b""
    """The header for the backend that makes its spans part of the trace; empty if tracing is off."""
    headers: Headers = field(default_factory=list)
    """Headers that are added to those of the endpoint."""

    def wait(self, now: float) -> None:
        """Note that the request waits in the queue, or waits once more because its first attempt failed.

        It runs on no backend then. `backend` stays the one that was asked, because the log and the
        usage record name it if no other follows.
        """
        self.queued_at = now if self.queued_at is None else self.queued_at
        self.granted_at = self.answered_at = None

    def runs_on(self, backend: str) -> bool:
        """Return True if the backend of this name works for the request."""
        return self.backend == backend and self.granted_at is not None

    @property
    def trace_id(self) -> str | None:
        """The id of the trace in 32 hex digits, or None if tracing is off."""
        return self.traceparent.split(b"-")[1].decode() if self.traceparent else None

    @property
    def queue_s(self) -> float | None:
        """Seconds from joining the queue to the last grant, or None if there was none."""
        if self.queued_at is None or self.granted_at is None:
            return None
        return self.granted_at - self.queued_at

    @property
    def first_output_s(self) -> float | None:
        """Seconds from the start of the request to the first generated output, or None without output."""
        return None if self.first_output_at is None else self.first_output_at - self.began_at

    @property
    def duration_s(self) -> float | None:
        """Seconds from start to end, or None while the request runs."""
        return None if self.ended_at is None else self.ended_at - self.began_at

    @property
    def final_status(self) -> int | None:
        """The status that was sent, 499 if the client left, or None if nothing was sent."""
        return 499 if self.outcome == "client_gone" else self.status

    @property
    def final_outcome(self) -> str:
        """The outcome if a layer set one, else `ok` or `error`. Valid once the request has ended."""
        failed = self.code is not None or self.status is None or self.status >= 400
        return self.outcome or ("error" if failed else "ok")

    def facts(self, now: float) -> dict[str, Any]:
        """The facts for log and operators, with times in milliseconds.

        No content and no key is among them.
        """
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
            "reasoning_tokens": self.reasoning_tokens or None,
            "partial": self.partial or None,
            "estimated": self.estimated or None,
        }

    def server_timing(self, now: float) -> bytes:
        """The value of `server-timing`: milliseconds in the queue and upstream, as far as known."""
        parts = []
        if self.queued_at is not None:
            parts.append(b"queue;dur=%.1f" % (((self.granted_at or now) - self.queued_at) * 1000))
        if self.asked_at is not None:
            parts.append(b"upstream;dur=%.1f" % (((self.answered_at or now) - self.asked_at) * 1000))
        return b", ".join(parts) or b"queue;dur=0.0"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def attach(scope: Scope, context: RequestContext) -> None:
    """Store the context in the scope, where `context_of` finds it."""
    scope.setdefault("state", {})[_KEY] = context


def headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """The request's headers by name, built once per request. If a name is repeated, the last value counts."""
    state = scope.setdefault("state", {})
    headers: dict[bytes, bytes] | None = state.get(_HEADERS)
    if headers is None:
        headers = state[_HEADERS] = dict(scope["headers"])
    return headers


def context_of(scope: Scope) -> RequestContext:
    """The context that the outermost middleware stored in the scope."""
    return cast("RequestContext", scope["state"][_KEY])
