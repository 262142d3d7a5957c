"""The answers under way, so that those which outlive the gateway's patience can be ended properly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from slotgate.admission import Lease
from slotgate.gateway.forwarding.books import BookEntry
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.errors import ClientError, GatewayError

__all__ = ["Cancellable", "InFlight", "Progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an answer has come."""

    lease: Lease | None
    """The last one that it got."""
    prompt_tokens: int
    """As stated so far, else 0."""
    cached_tokens: int
    tokens: int
    """Generated so far; an answer that is no stream knows it at its end."""
    first_output_at: float | None
    """When the first of them came, where that can be seen."""

    @classmethod
    def of(cls, entry: BookEntry, first_output_at: float | None) -> Progress:
        usage = entry.usage
        return cls(
            entry.lease, usage.prompt_tokens or 0, usage.cached_tokens, usage.completed, first_output_at
        )


class Cancellable(Protocol):
    def cancel(self, error: GatewayError) -> None:
        """End the answer with this error, told to the client as its state allows. Never awaits."""

    def progress(self) -> Progress:
        """How far it has come, for whoever looks."""


class InFlight:
    """Those of one tenant can be named: by the request's id, and by the key under which the latest wins."""

    def __init__(self) -> None:
        self._answers: dict[Cancellable, RequestContext] = {}
        self._latest: dict[tuple[str, bytes], Cancellable] = {}
        self._observers: list[Callable[[Cancellable, float], None]] = []

    def __repr__(self) -> str:
        return f"<InFlight {len(self._answers)}>"

    def subscribe(self, observer: Callable[[Cancellable, float], None]) -> None:
        """Tell `observer` of every answer that is over, and when its request began. It must not raise."""
        self._observers.append(observer)

    @contextmanager
    def holding(
        self, answer: Cancellable, context: RequestContext, *, supersede_key: bytes = b""
    ) -> Iterator[None]:
        """With a key in `supersede_key`, the tenant's answer that was held under it before is ended."""
        self._answers[answer] = context
        key = (context.tenant.name, supersede_key)
        if supersede_key:
            earlier, self._latest[key] = self._latest.get(key), answer
            if earlier is not None:
                message = "a later request of the same key has taken the place of this one"
                earlier.cancel(ClientError("superseded", message, status=409))
        try:
            yield
        finally:
            del self._answers[answer]
            for observer in self._observers:
                observer(answer, context.began_at)
            if self._latest.get(key) is answer:
                del self._latest[key]

    def cancel(self, request_id: str, tenant: str | None) -> int:
        """End all answers of the request with this id, of this tenant or of any; returns how many."""
        found = [
            answer
            for answer, context in self._answers.items()
            if context.id == request_id and tenant in (None, context.tenant.name)
        ]
        for answer in found:
            answer.cancel(ClientError("cancelled", "the request was cancelled", status=409))
        return len(found)

    @property
    def answers(self) -> list[tuple[Cancellable, RequestContext]]:
        """Those under way, the latest first."""
        return list(reversed(self._answers.items()))

    @property
    def contexts(self) -> list[RequestContext]:
        """Of the requests under way, the latest first."""
        return list(reversed(self._answers.values()))

    def revoke(self, holds: Callable[[bytes], bool]) -> int:
        """End those that wait under a key which is no longer good; returns how many. What runs goes on."""
        found = [
            answer
            for answer, context in self._answers.items()
            if context.granted_at is None and context.key_digest and not holds(context.key_digest)
        ]
        for answer in found:
            message = "the API key was revoked while the request waited"
            answer.cancel(ClientError("invalid_api_key", message, status=401, kind="authentication_error"))
        return len(found)

    def cancel_all(self, error: GatewayError, backend: str | None = None) -> None:
        """End all answers with this error, or only those that come from this backend."""
        for answer, context in list(self._answers.items()):
            if backend is None or (context.backend == backend and context.granted_at is not None):
                answer.cancel(error)
