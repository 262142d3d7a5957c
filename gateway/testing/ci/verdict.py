"""What was asked in a CI run, and what of it failed unexpectedly. Plain data, no IO.

A request fails unexpectedly if it ended with a status of 500 or more, or with an error inside its stream, or
if it asked for a model or a path that is not there; unless the script asked for its failure, or its code was
declared as expected. A client that left, a refused key, a limit and a bad request are the application's own
business: they are shown and fail nothing.
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
    """One request that has ended."""

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
    """Everything that was asked, in the order in which it ended."""

    expected: frozenset[str] = frozenset()
    asked: list[EndedRequest] = field(default_factory=list)
    forgotten: int = 0
    """Requests beyond those that are kept."""

    def hear(self, context: RequestContext) -> None:
        """A request has ended. Those for health and readiness are nobody's test."""
        asked = EndedRequest.of(context)
        if context.model is None and not asked.failed:
            return
        if len(self.asked) < KEPT or asked.failed:
            self.asked.append(asked)
        else:
            self.forgotten += 1

    def unexpected(self, meant: Callable[[str], bool]) -> list[EndedRequest]:
        """`meant` says of a request's id whether the script asked for its failure."""
        failed = (asked for asked in self.asked if asked.failed and asked.code not in self.expected)
        return [asked for asked in failed if not meant(asked.id)]


def printable(text: str) -> str:
    """What clients choose goes to a terminal and into XML, which cannot say everything."""
    return "".join(each if each.isprintable() else "?" for each in text)


def in_words(verdict: Verdict, failures: Iterable[EndedRequest], unmatched: Iterable[str]) -> str:
    lines = [f"  {failure.name}: {failure.ending}" for failure in failures]
    lines += [f"  {printable(name)}: it was not told how to answer" for name in unmatched]
    told = f"{len(verdict.asked) + verdict.forgotten} requests, {len(lines)} failed unexpectedly"
    return "\n".join([f"slotgate ci: {told}", *lines])
