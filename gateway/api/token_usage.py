"""The token counts of one request, read off its answer as it passes, in whatever protocol it is.

Four rules keep the counts right on every ending:

* The last statement counts. A backend may state running counts in every chunk; `message_start` on
  `/v1/messages` states an output of 0 tokens that grows.
* Unknown is not zero. A count that the backend has not stated is None, and `forwarding/books.py` estimates
  it.
* A stream that ended early is counted by the deltas that passed, or by the running count if that is higher.
* An answer of several choices or prompts consists of parts. llama-server states the counts of each part in
  that part's last chunk of a stream, but only those of the first part in an answer that is no stream. The
  other parts are then estimated from their texts.

Sources: `usage` (inside `response` on Responses, inside `message` on `/v1/messages`), else `timings`, else
llama.cpp's `tokens_evaluated` and `tokens_predicted`, else `prompt_progress` (llama-server, tools/server).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["TokenUsage"]

_PROMPT = ("prompt_tokens", "input_tokens")
_COMPLETION = ("completion_tokens", "output_tokens")
_PROMPT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_COMPLETION_DETAILS = ("completion_tokens_details", "output_tokens_details")
_AROUND = ("response", "message")
"""Members in which a usage may stand instead of at the top."""
_MOST_TOKENS = 1 << 53
"""A greater count is ignored: sums of such counts could not be written as JSON."""
_NOTHING, _PROGRESS, _NATIVE, _TIMINGS, _USAGE = range(5)


@dataclass(slots=True)
class _Part:
    """The counts that were stated for one part of an answer. A count is None before it is stated."""

    prompt: int | None = None
    cached: int = 0
    completion: int | None = None
    reasoning: int | None = None
    rank: int = _USAGE
    """The rank of the source. Later counts of a lower rank are ignored: `usage` outranks `timings`."""

    def update(self, later: _Part) -> None:
        """Take over the counts of a later statement. Messages state the prompt first and the output last."""
        if later.rank < self.rank:
            return
        self.rank = later.rank
        if later.prompt is not None:
            self.prompt, self.cached = later.prompt, later.cached
        if later.completion is not None:
            self.completion = later.completion
        if later.reasoning is not None:
            self.reasoning = later.reasoning


class TokenUsage:
    """The token counts of a request with `choices` answers to each of `prompts` prompts.

    `deltas` counts the output chunks that have passed.
    """

    __slots__ = (
        "_choices",
        "_extrapolated",
        "_parts",
        "_prompts",
        "_reasoned",
        "_reasoning_since",
        "deltas",
        "finished",
        "in_reasoning",
    )

    def __init__(self, choices: int = 1, prompts: int = 1) -> None:
        self._choices = choices
        self._prompts = prompts
        self._parts: dict[int, _Part] = {}
        """Index of the part -> the counts that were stated of it."""
        self._extrapolated = False
        self.deltas = 0
        self._reasoned = 0
        """The reasoning deltas of the stretches of reasoning that are over."""
        self._reasoning_since = 0
        """The value of `deltas` at which the present stretch of reasoning began."""
        self.in_reasoning = False
        """True while the deltas that pass are reasoning."""
        self.finished = False
        """True once the answer has ended as a success: stated counts are final then."""

    def __repr__(self) -> str:
        sign = "" if self.exact else "~"
        return f"<TokenUsage {sign}{self.prompt_tokens}+{self.completed} tokens>"

    # -- the counts

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of all prompts, cached ones included; None until every prompt's count has been stated.

        Several choices share one prompt, which llama-server processes once.
        """
        stated = [part.prompt for part in self._parts.values() if part.prompt is not None]
        if self.parts_expected == 1 or self._prompts == 1:
            return max(stated, default=None)
        return sum(stated) // self._choices if len(stated) >= self.parts_expected else None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were found in the backend's cache, as far as stated."""
        cached = [part.cached for part in self._parts.values() if part.prompt is not None]
        if self._prompts == 1:
            return min(cached, default=0)  # further choices find the prompt of the first one
        return sum(cached) // self._choices

    @property
    def completed(self) -> int:
        """Completion tokens: the stated count of a finished answer, else at least what has passed."""
        stated = self._stated_completion
        return stated if self._completion_is_final else max(stated, self.deltas)

    @property
    def reasoning_deltas(self) -> int:
        """The deltas among `deltas` that carried reasoning."""
        running = self.deltas - self._reasoning_since if self.in_reasoning else 0
        return self._reasoned + running

    @property
    def reasoning_tokens(self) -> int:
        """Completion tokens that were reasoning, as far as they can be told apart."""
        stated = [part.reasoning for part in self._parts.values() if part.reasoning is not None]
        return min(sum(stated) if stated else self.reasoning_deltas, self.completed)

    @property
    def extrapolated(self) -> bool:
        """True if the counts of some parts are estimated from their texts."""
        return self._extrapolated

    @property
    def states_counts(self) -> bool:
        """True if a finished answer stated its completion count for every part."""
        return self.finished and self._completion_is_final

    @property
    def exact(self) -> bool:
        """True if the answer is finished and the backend stated all counts of it."""
        stated = self._completion_is_final or self.completed == 0  # nothing is generated for embeddings
        return self.finished and stated and not self._extrapolated and self.prompt_tokens is not None

    def running_usage(self) -> dict[str, int]:
        """The counts so far, as the `usage` of a chunk. A count that is not known yet is 0."""
        prompt = self.prompt_tokens or 0
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.completed,
            "total_tokens": prompt + self.completed,
        }

    # -- reading an answer

    def next_deltas(self, *, reasoning: bool) -> None:
        """State the kind of the deltas from now on. A delta itself is then only counted."""
        if reasoning is self.in_reasoning:
            return
        self._reasoned = self.reasoning_deltas
        self.in_reasoning = reasoning
        self._reasoning_since = self.deltas

    def read(self, answer: dict[str, Any]) -> None:
        """Take the counts from a chunk, or from a whole answer, if it states any."""
        stated = _stated_in(answer)
        if stated is None:
            return
        index = _index_of(answer) if self.parts_expected > 1 else 0
        if index is None:
            index = self._next_part_without_usage()
        self._parts.setdefault(index, _Part(rank=_NOTHING)).update(stated)

    def read_whole(self, answer: dict[str, Any] | list[Any]) -> None:
        """Take the counts from an answer that is no stream. A list holds one answer for each part."""
        if isinstance(answer, dict):
            self.read(answer)
            if self.parts_expected > 1:
                self._extrapolate(answer)
        else:
            for position, part in enumerate(answer):
                stated = _stated_in(part) if isinstance(part, dict) else None
                if stated is not None:
                    self._parts.setdefault(position, _Part(rank=_NOTHING)).update(stated)
        self.settle()

    def settle(self) -> None:
        """Note that the answer has ended as a success, so that the stated counts are final."""
        self.finished = True

    # -- mechanism

    def _next_part_without_usage(self) -> int:
        """Return the part for a usage chunk without an index. llama-server sends one for each part.

        Their order does not matter, because only sums are told. A chunk too many replaces the last one.
        """
        for index in range(self.parts_expected):
            part = self._parts.get(index)
            if part is None or part.rank < _USAGE:
                return index
        return self.parts_expected - 1

    @property
    def prompts(self) -> int:
        """The number of prompts."""
        return self._prompts

    @property
    def parts_expected(self) -> int:
        """The number of answers: `choices` for each prompt."""
        return self._choices * self._prompts

    @property
    def _stated_completion(self) -> int:
        return sum(part.completion or 0 for part in self._parts.values())

    @property
    def _completion_is_final(self) -> bool:
        stated = sum(1 for part in self._parts.values() if part.completion is not None)
        return self.finished and stated >= self.parts_expected

    def _extrapolate(self, answer: dict[str, Any]) -> None:
        """Count the parts whose counts llama-server leaves out, by their texts beside the first one's."""
        choices = answer.get("choices")
        first = self._parts.get(0)
        if not isinstance(choices, list) or first is None or len(self._parts) > 1:
            return
        reference = choices[0] if choices else None
        for position, choice in enumerate(choices[1:], start=1):
            part = _Part()
            if first.completion is not None:
                part.completion = _proportional(first.completion, choice, reference)
            if self._prompts == 1:
                part.prompt, part.cached = first.prompt, first.cached
            self._parts[position] = part
            self._extrapolated = True


def _stated_in(answer: dict[str, Any]) -> _Part | None:
    """Return the counts that a chunk or an answer states, or None if it states none."""
    usage = answer.get("usage")
    for name in _AROUND:
        inner = answer.get(name)
        if usage is None and isinstance(inner, dict):
            usage = inner.get("usage")
    if isinstance(usage, dict):
        part = _in_usage(usage)
        if part is not None:
            return part
    timings = answer.get("timings")
    if isinstance(timings, dict):
        cached = _count(timings, "cache_n") or 0
        prompt = cached + (_count(timings, "prompt_n") or 0)
        return _Part(prompt, cached, _count(timings, "predicted_n"), rank=_TIMINGS)
    if "tokens_evaluated" in answer or "tokens_predicted" in answer:
        prompt_count, completion = _count(answer, "tokens_evaluated"), _count(answer, "tokens_predicted")
        return _Part(prompt_count, 0, completion, rank=_NATIVE)
    progress = answer.get("prompt_progress")
    if isinstance(progress, dict):
        return _Part(_count(progress, "total"), _count(progress, "cache") or 0, rank=_PROGRESS)
    return None


def _in_usage(usage: dict[str, Any]) -> _Part | None:
    prompt = next((_count(usage, name) for name in _PROMPT if name in usage), None)
    completion = next((_count(usage, name) for name in _COMPLETION if name in usage), None)
    if prompt is None and completion is None:
        return None
    read_from_cache = _count(usage, "cache_read_input_tokens") or 0
    cached = read_from_cache
    for details in _details(usage, _PROMPT_DETAILS):
        cached = _count(details, "cached_tokens") or 0
    part = _Part(completion=completion)
    if prompt is not None:
        # Anthropic's `input_tokens` leaves out the tokens that were read from the cache.
        part.prompt, part.cached = prompt + read_from_cache, cached
    for details in _details(usage, _COMPLETION_DETAILS):
        part.reasoning = _count(details, "reasoning_tokens")
    return part


def _details(usage: dict[str, Any], names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    return (details for name in names if isinstance(details := usage.get(name), dict))


def _index_of(chunk: dict[str, Any]) -> int | None:
    """Return the part of the answer that a chunk belongs to, or None if the chunk does not say."""
    choices = chunk.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        index = choices[0].get("index")
    else:
        index = chunk.get("index")
    return index if isinstance(index, int) else None


def _text_length(value: object) -> int:
    """Return the characters of all texts of a choice: content, reasoning, arguments of tool calls."""
    length, left = 0, [value]
    while left:
        inner = left.pop()
        if isinstance(inner, str):
            length += len(inner)
        elif isinstance(inner, dict):
            left += [inner[name] for name in inner if name not in ("finish_reason", "role", "logprobs", "id")]
        elif isinstance(inner, list):
            left += inner
    return length


def _proportional(tokens: int, choice: object, reference: object) -> int:
    """Estimate the tokens of a choice from those of another one.

    Both have the same limit, which both may reach.
    """
    if _stopped_by_limit(choice) and _stopped_by_limit(reference):
        return tokens
    length, of_length = _text_length(choice), _text_length(reference)
    return round(tokens * length / of_length) if of_length else (tokens if length else 0)


def _stopped_by_limit(choice: object) -> bool:
    return isinstance(choice, dict) and choice.get("finish_reason") == "length"


def _count(counts: dict[str, Any], name: str) -> int | None:
    value = counts.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _MOST_TOKENS else None
