"""The requests in flight. They can be cancelled by id, by key, by backend, or all together at shutdown."""

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
    """The progress of an answer."""

    leases: tuple[Lease, ...]
    """The last lease that the request got, or those of its pieces that run."""
    prompt_tokens: int
    """Prompt tokens, as far as the backend has stated them; else 0."""
    cached_tokens: int
    tokens: int
    """Tokens generated so far. A buffered answer states them only at its end."""
    first_output_at: float | None
    """The time of the first token; None for a buffered answer."""
    context_tokens: tuple[int, ...] = ()
    """For each of `leases`: the tokens of its prompt and of its answer so far. A prompt whose count was not
    stated is estimated."""

    @classmethod
    def of(cls, entry: BookEntry, first_output_at: float | None) -> Progress:
        usage = entry.usage
        stated = usage.prompt_tokens
        prompt = round(entry.expected_prompt) if stated is None else stated
        leases = () if entry.lease is None else (entry.lease,)
        return cls(
            leases,
            stated or 0,
            usage.cached_tokens,
            usage.completed,
            first_output_at,
            (prompt + usage.completed,) * len(leases),
        )


class Cancellable(Protocol):
    def cancel(self, error: GatewayError) -> None:
        """End the answer with this error, in the form that its state allows. Never awaits."""

    def progress(self) -> Progress:
        """Return the progress so far."""

    @property
    def waits(self) -> bool:
        """True while the request waits in the queue, and no part of it runs or is answered."""

    def runs_on(self, backend: str) -> bool:
        """Return True if the backend of this name works for the request."""


class InFlight:
    """All requests that wait or run at the endpoints that take a slot."""

    def __init__(self) -> None:
        self._answers: dict[Cancellable, RequestContext] = {}
        self._latest: dict[tuple[str, bytes], Cancellable] = {}
        self._observers: list[Callable[[Cancellable, float], None]] = []

    def __repr__(self) -> str:
        return f"<InFlight {len(self._answers)}>"

    def subscribe(self, observer: Callable[[Cancellable, float], None]) -> None:
        """Call `observer` for every answer that is over, with the start time of its request.

        It must not raise.
        """
        self._observers.append(observer)

    @contextmanager
    def holding(
        self, answer: Cancellable, context: RequestContext, *, supersede_key: bytes = b""
    ) -> Iterator[None]:
        """Keep the answer in the list during the block.

        It ends the tenant's earlier answer with the same key.
        """
        self._answers[answer] = context
        key = (context.tenant.name, supersede_key)
        if supersede_key:
            earlier, self._latest[key] = self._latest.get(key), answer
            if earlier is not None:
                message = "a newer request with the same key has replaced this one"
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
        """Cancel the requests with this id, of one tenant or (None) of any tenant. Return their number."""
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
        """The answers in flight, the latest first."""
        return list(reversed(self._answers.items()))

    @property
    def contexts(self) -> list[RequestContext]:
        """The contexts of the requests in flight, the latest first."""
        return list(reversed(self._answers.values()))

    def revoke(self, holds: Callable[[bytes], bool]) -> int:
        """End the queued requests whose key is not valid any more, and return their number.

        Running ones finish.
        """
        found = [
            answer
            for answer, context in self._answers.items()
            if answer.waits and context.key_digest and not holds(context.key_digest)
        ]
        for answer in found:
            message = "the API key was revoked while the request waited"
            answer.cancel(ClientError("invalid_api_key", message, status=401, kind="authentication_error"))
        return len(found)

    def cancel_all(self, error: GatewayError, backend: str | None = None) -> None:
        """End all requests with this error, or only those that run on this backend."""
        for answer in list(self._answers):
            if backend is None or answer.runs_on(backend):
                answer.cancel(error)
