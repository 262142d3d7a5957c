"""The books of a request that is asked piece by piece: the sum of its pieces.

Every piece has an entry of its own, and the table in `forwarding/books.py` decides what it is charged for.
Only the sums are kept of pieces that have ended, because there may be many.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slotgate.gateway.api.prompt_size import PromptSize
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.forwarding.books import BookEntry, Charge
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.errors import GatewayError

__all__ = ["SplitEntry"]


@dataclass(slots=True)
class _Sums:
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0
    estimated: bool = False


@dataclass(slots=True)
class SplitEntry(BookEntry):
    """`usage` knows how many parts are expected, and nothing else is read from it."""

    answered: int = 0
    """The pieces whose answers are complete."""
    sums: _Sums = field(default_factory=_Sums)
    """The counts of the pieces that have ended."""
    _charged: Charge = Charge.NOTHING
    _running: list[BookEntry] = field(default_factory=list)

    def begin(self, choices: int, prompt: PromptSize, expected_prompt: float) -> BookEntry:
        """Return the entry of a piece that is about to queue. `end` has to follow."""
        piece = BookEntry(TokenUsage(choices), prompt, expected_prompt, answer_limit=self.answer_limit)
        self._running.append(piece)
        return piece

    def end(self, piece: BookEntry, failure: GatewayError | None) -> None:
        """Add what a piece used. `failure` ended it, or ended the request; None: it was answered or left."""
        self._running = [other for other in self._running if other is not piece]
        piece.failure = failure
        counts = RequestContext("", 0.0)
        piece.state(counts)
        charge, piece.failure = piece.charge, None  # the traceback of a failure would keep the request alive
        if charge is Charge.WORK:
            sums = self.sums
            sums.prompt += counts.prompt_tokens
            sums.cached += counts.cached_tokens
            sums.completion += counts.completion_tokens
            sums.reasoning += counts.reasoning_tokens
            sums.estimated = sums.estimated or counts.estimated
            self.answered += piece.usage.finished
            self._charged = Charge.WORK
        elif self._charged is Charge.NOTHING:
            self._charged = charge

    def progress(self) -> Progress:
        """Return the progress: the leases of the pieces that run, and the counts of those that have ended."""
        sums, running = self.sums, [Progress.of(piece, None) for piece in self._running]
        return Progress(
            tuple(lease for piece in running for lease in piece.leases),
            sums.prompt,
            sums.cached,
            sums.completion,
            None,
            tuple(tokens for piece in running for tokens in piece.context_tokens),
        )

    @property
    def charge(self) -> Charge:
        return self._charged

    @property
    def stated_prompt(self) -> int | None:
        complete = self.answered == self.pieces and not self.sums.estimated
        return self.sums.prompt if complete else None

    @property
    def pieces(self) -> int:
        return self.usage.prompts

    def state(self, context: RequestContext) -> int:
        if self._charged is not Charge.WORK:
            return 0
        sums = self.sums
        context.prompt_tokens, context.cached_tokens = sums.prompt, sums.cached
        context.completion_tokens, context.reasoning_tokens = sums.completion, sums.reasoning
        context.partial, context.estimated = self.answered < self.pieces, sums.estimated
        return sums.prompt + sums.completion
