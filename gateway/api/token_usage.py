"""What a request cost, read off the answer as it passes, in whatever protocol it is.

llama-server states the counts in `usage` (which Responses and messages have inside an object of theirs), or
else in the `timings` of its finish chunk. A stream that ended before either came is counted by the deltas
that passed, and marked as partial. Of several choices or prompts llama-server states the counts of one:
there the deltas of all say more.
"""

from __future__ import annotations

from typing import Any

__all__ = ["TokenUsage"]

_PROMPT = ("prompt_tokens", "input_tokens")
_COMPLETION = ("completion_tokens", "output_tokens")
_COUNTS = (*_PROMPT, *_COMPLETION)
_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_AROUND = ("response", "message")
"""Members in which a usage may stand instead of at the top."""
_MOST_TOKENS = 1 << 53
"""A greater count is none: sums of such could not be written as JSON."""


class TokenUsage:
    __slots__ = ("cached_tokens", "completion_tokens", "deltas", "exact", "parts", "prompt_tokens")

    def __init__(self, parts: int = 1) -> None:
        self.parts = parts
        self.deltas = 0
        self.exact = False
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0

    def __repr__(self) -> str:
        sign = "" if self.exact else "~"
        return f"<TokenUsage {sign}{self.prompt_tokens}+{self.completed} tokens>"

    @property
    def completed(self) -> int:
        """Completion tokens: the stated count, else the deltas seen."""
        if self.exact and self.parts == 1:
            return self.completion_tokens
        return max(self.completion_tokens, self.deltas)

    def read(self, answer: dict[str, Any]) -> None:
        """Take the counts from a chunk or a whole answer, if it states any."""
        usage = answer.get("usage")
        if usage is None:
            for name in _AROUND:
                inner = answer.get(name)
                if isinstance(inner, dict):
                    usage = inner.get("usage")
                    break
        timings = answer.get("timings")
        if isinstance(usage, dict) and any(isinstance(usage.get(name), int) for name in _COUNTS):
            self._usage(usage)
        elif isinstance(timings, dict) and not self.exact:
            self._timings(timings)

    def read_whole(self, answer: dict[str, Any] | list[Any]) -> None:
        """The same for an answer that is no stream; a list of answers counts as their sum."""
        if isinstance(answer, dict):
            self.read(answer)
            self.settle()
            return
        for part in answer:
            if isinstance(part, dict):
                one = TokenUsage()
                one.read(part)
                self.prompt_tokens += one.prompt_tokens
                self.cached_tokens += one.cached_tokens
                self.completion_tokens += one.completion_tokens
        self.settle()

    def running_usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completed,
            "total_tokens": self.prompt_tokens + self.completed,
        }

    def _usage(self, usage: dict[str, Any]) -> None:
        """A later usage completes an earlier one: messages state the prompt first, the output last."""
        cached = _count(usage, "cache_read_input_tokens")
        for name in _DETAILS:
            details = usage.get(name)
            if isinstance(details, dict):
                cached = _count(details, "cached_tokens")
        prompt = next((_count(usage, name) for name in _PROMPT if name in usage), None)
        if prompt is not None:
            # Anthropic's count leaves out what was cached.
            self.prompt_tokens = prompt + _count(usage, "cache_read_input_tokens")
            self.cached_tokens = cached
        completion = next((_count(usage, name) for name in _COMPLETION if name in usage), None)
        if completion is not None:
            self.completion_tokens = completion
        self.exact = True

    def _timings(self, timings: dict[str, Any]) -> None:
        self.cached_tokens = _count(timings, "cache_n")
        self.prompt_tokens = self.cached_tokens + _count(timings, "prompt_n")
        self.completion_tokens = _count(timings, "predicted_n")

    def settle(self) -> None:
        """The answer ended as a success: what `timings` said is final."""
        self.exact = self.exact or self.completion_tokens > 0


def _count(counts: dict[str, Any], name: str) -> int:
    value = counts.get(name)
    return value if isinstance(value, int) and 0 < value <= _MOST_TOKENS else 0
