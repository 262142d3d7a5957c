"""How many tokens a prompt of so many bytes probably has: by what prompts of the same model had lately."""

__all__ = ["PromptSizes"]

UNKNOWN = 0.25
"""Tokens a byte, before anything is known: four letters of English."""
_SMOOTHING = 0.1
_MARGIN = 1.1
_LEAST_BYTES = 256
"""Of shorter bodies most is no prompt."""


class PromptSizes:
    def __init__(self) -> None:
        self._tokens_per_byte: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<PromptSizes of {len(self._tokens_per_byte)} models>"

    def note(self, model: str, body_bytes: int, tokens: int) -> None:
        """A request for this model with so long a body had so many prompt tokens."""
        if body_bytes >= _LEAST_BYTES and tokens > 0:
            before = self._tokens_per_byte.get(model, UNKNOWN)
            self._tokens_per_byte[model] = before + _SMOOTHING * (tokens / body_bytes - before)

    def estimate(self, model: str, body_bytes: int) -> int:
        """Tokens; rather a few too many."""
        return int(body_bytes * max(UNKNOWN, self._tokens_per_byte.get(model, 0.0)) * _MARGIN) + 1
