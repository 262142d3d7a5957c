"""What a request cost, read off the answer as it passes.

llama-server states the counts in `usage`, or else in the `timings` of its finish chunk. A stream that ended
before either came is counted by the deltas that passed, and marked as partial. Of several choices
llama-server states the counts of one: there the deltas of all say more.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Meter"]

_USAGE_COUNTS = ("prompt_tokens", "completion_tokens")


class Meter:
    __slots__ = ("cached_tokens", "choices", "completion_tokens", "deltas", "exact", "prompt_tokens")

    def __init__(self, choices: int = 1) -> None:
        self.choices = choices
        self.deltas = 0
        self.exact = False
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0

    def __repr__(self) -> str:
        sign = "" if self.exact else "~"
        return f"<Meter {sign}{self.prompt_tokens}+{self.completed} tokens>"

    @property
    def completed(self) -> int:
        """Completion tokens: the stated count, else the deltas seen."""
        if self.exact and self.choices == 1:
            return self.completion_tokens
        return max(self.completion_tokens, self.deltas)

    def read(self, answer: dict[str, Any]) -> None:
        """Take the counts from a chunk or a whole answer, if it states any."""
        usage = answer.get("usage")
        timings = answer.get("timings")
        if isinstance(usage, dict) and any(isinstance(usage.get(name), int) for name in _USAGE_COUNTS):
            self._usage(usage)
        elif isinstance(timings, dict) and not self.exact:
            self._timings(timings)

    def running_usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completed,
            "total_tokens": self.prompt_tokens + self.completed,
        }

    def _usage(self, usage: dict[str, Any]) -> None:
        details = usage.get("prompt_tokens_details")
        self.prompt_tokens = _count(usage, "prompt_tokens")
        self.completion_tokens = _count(usage, "completion_tokens")
        self.cached_tokens = _count(details, "cached_tokens") if isinstance(details, dict) else 0
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
    return value if isinstance(value, int) and value > 0 else 0
