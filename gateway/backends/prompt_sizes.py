"""How many tokens a prompt of so many bytes has at most, probably: by the densest of the same model lately.

A mean would not do: what is estimated too small ends everything that runs beside it. So one prompt that is
denser than expected (another language, numbers, code) counts at once, and is forgotten little by little.
"""

__all__ = ["PromptSizes"]

UNKNOWN = 0.5
"""Tokens a byte, before anything is known: code, or a language that is not the model's first."""
_LEAST = 0.25
"""Never fewer: four letters of English. A picture is many bytes for few tokens and says nothing of texts."""
_FORGETTING = 0.1
_MARGIN = 1.1
TEMPLATE = 64
"""Tokens that the model's template puts around the messages."""
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
            seen = max(_LEAST, tokens / body_bytes)
            before = self._tokens_per_byte.get(model, UNKNOWN)
            self._tokens_per_byte[model] = max(seen, before + _FORGETTING * (seen - before))

    def estimate(self, model: str, body_bytes: int) -> int:
        """Tokens; rather a few too many."""
        return int(body_bytes * self._tokens_per_byte.get(model, UNKNOWN) * _MARGIN) + TEMPLATE
