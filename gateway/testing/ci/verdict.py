"""The requests of a CI run, and those that failed unexpectedly. Plain data, no IO.

A request has failed if its status was 500 or more, if its stream ended with an error, or if it named a model
or path that does not exist. The failure is expected if the script asked for it, or if `--expect` names its
code. A client that left, a refused key, a limit and a bad request are not failures, because tests of the
application may provoke them; the summary shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from slotgate.gateway.http.context import RequestContext

__all__ = ["EndedRequest", "Verdict", "in_words", "printable"]

KEPT: Final = 10_000
_MISTAKES: Final = frozenset({"model_not_found", "unknown_path"})


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request that has ended, with its outcome."""

    id: str
    path: str
    model: str | None
    status: int | None
    code: str | None
    message: str
    outcome: str
    stream: bool
    seconds: float

    @classmethod
    def of(cls, context: RequestContext) -> EndedRequest:
        return cls(
            id=context.id,
            path=context.path or "(other)",
            model=printable(context.model) if context.model else None,
            status=context.final_status,
            code=context.code,
            message=printable(context.message),
            outcome=context.final_outcome,
            stream=context.stream,
            seconds=context.duration_s or 0.0,
        )

    @property
    def failed(self) -> bool:
        if self.outcome == "client_gone":
            return False
        began_well = self.status is not None and self.status < 400
        broken = self.code is not None if began_well else self.status is None or self.status >= 500
        return broken or self.code in _MISTAKES

    @property
    def name(self) -> str:
        return f"{self.path} {self.model or ''}".rstrip() + (" (stream)" if self.stream else "")

    @property
    def ending(self) -> str:
        status = self.status if self.status is not None else "no status"
        return f"{status} {self.code or self.outcome}" + (f", {self.message}" if self.message else "")


@dataclass(slots=True)
class Verdict:
    """The requests of a run, in the order in which they ended."""

    expected: frozenset[str] = frozenset()
    requests: list[EndedRequest] = field(default_factory=list)
    forgotten: int = 0
    """The number of requests that were not kept, because there were more than `KEPT`."""

    def note_request(self, context: RequestContext) -> None:
        """Note a request that has ended. Successful requests without a model, as to /health, are ignored."""
        request = EndedRequest.of(context)
        if context.model is None and not request.failed:
            return
        if len(self.requests) < KEPT or request.failed:
            self.requests.append(request)
        else:
            self.forgotten += 1

    def unexpected(self, meant: Callable[[str], bool]) -> list[EndedRequest]:
        """Return the unexpected failures. `meant` returns True for the ids of scripted failures."""
        failed = (
            request for request in self.requests if request.failed and request.code not in self.expected
        )
        return [request for request in failed if not meant(request.id)]


def printable(text: str) -> str:
    """Return the text for terminals and XML, with unprintable characters replaced by `?`."""
    return "".join(each if each.isprintable() else "?" for each in text)


def in_words(verdict: Verdict, failures: Iterable[EndedRequest], unmatched: Iterable[str]) -> str:
    lines = [f"  {failure.name}: {failure.ending}" for failure in failures]
    lines += [f"  {printable(name)}: no reply or recording matched" for name in unmatched]
    summary = f"{len(verdict.requests) + verdict.forgotten} requests, {len(lines)} failed unexpectedly"
    return "\n".join([f"slotgate ci: {summary}", *lines])
