"""Learns how long answers are, for backends whose slots share one context.

Clients often set a `max_tokens` that is far above what they get. The likely length is that of the longest of
the latest answers that the same tenant got at the same endpoint from the same model, and a bit more.
"""

from __future__ import annotations

from collections import OrderedDict, deque

__all__ = ["AnswerSizes"]

LEAST_ANSWERS = 4
"""Fewer answers say too little."""
_LATEST = 32
_MARGIN = 1.25
_MORE = 32
"""Tokens that are added, because the margin of a short answer is small."""
_REMEMBERED = 4096
"""Kinds of requests that are kept; the one that was used longest ago goes first."""

AnswerKind = tuple[str, str, str]
"""Tenant, endpoint and model."""


class AnswerSizes:
    def __init__(self) -> None:
        self._kinds: OrderedDict[AnswerKind, deque[int]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<AnswerSizes of {len(self._kinds)} kinds>"

    def note(self, kind: AnswerKind, tokens: int) -> None:
        """Learn from an answer that had so many tokens."""
        latest = self._kinds.setdefault(kind, deque(maxlen=_LATEST))
        latest.append(tokens)
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _REMEMBERED:
            self._kinds.popitem(last=False)

    def likely(self, kind: AnswerKind) -> int | None:
        """Return a number of tokens that an answer seldom exceeds; None if too little is known."""
        latest = self._kinds.get(kind, ())
        return int(max(latest) * _MARGIN) + _MORE if len(latest) >= LEAST_ANSWERS else None
