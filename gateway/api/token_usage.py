"""The token counts of a request, read from its answer as it passes, in any of the protocols.

llama-server states the counts in `usage`, which the Responses and Messages protocols put inside another
object, or else in the `timings` of its finish chunk. If a stream ends before either has come, the deltas that
passed are counted, and the usage is partial. For several choices or prompts llama-server states the counts of
one of them only; then the deltas of all are counted, if they are more.
"""

from __future__ import annotations

from typing import Any

__all__ = ["TokenUsage"]

_PROMPT = ("prompt_tokens", "input_tokens")
_COMPLETION = ("completion_tokens", "output_tokens")
_COUNTS = (*_PROMPT, *_COMPLETION)
_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_CONTAINERS = ("response", "message")
"""Members that may hold `usage` instead of the top level."""
_MAX_TOKENS = 1 << 53
"""A greater count is ignored: the sum of two could be too big a number for JSON."""


class TokenUsage:
    __slots__ = ("cached_tokens", "completion_tokens", "deltas", "exact", "parts", "prompt_tokens")

    def __init__(self, parts: int = 1) -> None:
        self.parts = parts
        """The number of parts in the answer: choices times prompts."""
        self.deltas = 0
        """Chunks with output that have passed."""
        self.exact = False
        """True once the backend has stated the final counts."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0

    def __repr__(self) -> str:
        sign = "" if self.exact else "~"
        return f"<TokenUsage {sign}{self.prompt_tokens}+{self.completed} tokens>"

    @property
    def completed(self) -> int:
        """The completion tokens: the stated count, else the deltas that passed."""
        if self.exact and self.parts == 1:
            return self.completion_tokens
        return max(self.completion_tokens, self.deltas)

    def read(self, answer: dict[str, Any]) -> None:
        """Take the counts from a chunk or a response body, if it states any."""
        usage = answer.get("usage")
        if usage is None:
            for name in _CONTAINERS:
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
        """Take the final counts from a response body. The counts of a list are the sums of its items."""
        if isinstance(answer, dict):
            self.read(answer)
            self.settle()
            return
        for part in answer:
            if isinstance(part, dict):
                usage = TokenUsage()
                usage.read(part)
                self.prompt_tokens += usage.prompt_tokens
                self.cached_tokens += usage.cached_tokens
                self.completion_tokens += usage.completion_tokens
        self.settle()

    def running_usage(self) -> dict[str, int]:
        """Return the usage so far, as OpenAI's protocols write it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completed,
            "total_tokens": self.prompt_tokens + self.completed,
        }

    def _usage(self, usage: dict[str, Any]) -> None:
        """Take the counts of a usage object.

        It completes an earlier one: the Messages protocol states the prompt at first, the output at last.
        """
        cached = _count(usage, "cache_read_input_tokens")
        for name in _DETAILS:
            details = usage.get(name)
            if isinstance(details, dict):
                cached = _count(details, "cached_tokens")
        prompt = next((_count(usage, name) for name in _PROMPT if name in usage), None)
        if prompt is not None:
            # Anthropic's `input_tokens` does not include the cached tokens.
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
        """The answer ended as a success, so the counts in `timings` are final."""
        self.exact = self.exact or self.completion_tokens > 0


def _count(counts: dict[str, Any], name: str) -> int:
    value = counts.get(name)
    return value if isinstance(value, int) and 0 < value <= _MAX_TOKENS else 0
