"""Estimates the number of tokens in a prompt from its size. The rates are learnt for each model.

There are two estimates. `expected` is the likely number, for limits and records. It uses running means.
`at_most` is a number that is seldom exceeded. It is for backends whose slots share one context, where an
estimate that is too small ends all running requests. It follows the prompts with most tokens per byte, and
forgets them slowly.

A picture counts as a bounded number of tokens, which is learnt from prompts with pictures.
"""

from __future__ import annotations

from dataclasses import dataclass

from slotgate.gateway.api.prompt_size import PromptSize

__all__ = ["PromptSizes"]

EXPECTED_PER_BYTE = 0.25
"""Tokens per byte before anything is learnt: one token for four letters of English."""
MOST_PER_BYTE = 0.5
"""Tokens per byte for the upper bound, as for code or for a language that the model knows less well."""
EXPECTED_PER_PICTURE = 800.0
MOST_PER_PICTURE = 2048.0
_PICTURE_BOUNDS = (16.0, 8192.0)
AUDIO_BYTES_PER_TOKEN = 2000
"""A rough guess for every format: 16,000 samples of two bytes and about 16 tokens per second."""
_LEAST_PER_BYTE = 0.25
"""The upper bound never goes below this."""
_LEAST_EXPECTED_PER_BYTE = 0.02
_SMOOTHING = 0.1
_MARGIN = 1.1
TEMPLATE = 64
"""Tokens that the chat template puts around the messages. They are part of the upper bound."""
_LEAST_BYTES = 256
"""The size from which a text teaches something. Most tokens of a shorter one come from the template."""


@dataclass(slots=True)
class _Rates:
    """Tokens per byte of text and per picture: the running mean, and the recent maximum."""

    per_byte: float = EXPECTED_PER_BYTE
    most_per_byte: float = MOST_PER_BYTE
    per_picture: float = EXPECTED_PER_PICTURE
    most_per_picture: float = MOST_PER_PICTURE


_UNKNOWN = _Rates()


class PromptSizes:
    def __init__(self) -> None:
        self._models: dict[str, _Rates] = {}

    def __repr__(self) -> str:
        return f"<PromptSizes of {len(self._models)} models>"

    def note(self, model: str, size: PromptSize, tokens: int) -> None:
        """Learn from a prompt of this size that had `tokens` tokens, as the backend stated."""
        if tokens <= 0 or size.audio_bytes:
            return
        if size.pictures:
            self._note_pictures(model, size, tokens)
        elif size.text_bytes >= _LEAST_BYTES:
            rates = self._models.setdefault(model, _Rates())
            seen = tokens / size.text_bytes
            rates.per_byte += _SMOOTHING * (max(_LEAST_EXPECTED_PER_BYTE, seen) - rates.per_byte)
            rates.most_per_byte = _most(max(_LEAST_PER_BYTE, seen), rates.most_per_byte)

    def expected(self, model: str, size: PromptSize) -> float:
        """Return the likely number of tokens."""
        rates = self._models.get(model, _UNKNOWN)
        audio = size.audio_bytes / AUDIO_BYTES_PER_TOKEN
        return size.text_bytes * rates.per_byte + size.pictures * rates.per_picture + audio

    def at_most(self, model: str, size: PromptSize) -> int:
        """Return a number of tokens that is seldom exceeded."""
        rates = self._models.get(model, _UNKNOWN)
        text = size.text_bytes * rates.most_per_byte * _MARGIN
        audio = size.audio_bytes / AUDIO_BYTES_PER_TOKEN
        return int(text + size.pictures * rates.most_per_picture * _MARGIN + audio) + TEMPLATE

    def _note_pictures(self, model: str, size: PromptSize, tokens: int) -> None:
        rates = self._models.setdefault(model, _Rates())
        least, most = _PICTURE_BOUNDS
        seen = min(max(least, (tokens - size.text_bytes * rates.per_byte) / size.pictures), most)
        rates.per_picture += _SMOOTHING * (seen - rates.per_picture)
        rates.most_per_picture = _most(seen, rates.most_per_picture)


def _most(seen: float, before: float) -> float:
    """Return the new maximum. A larger value counts at once; a smaller one lowers the maximum a little."""
    return max(seen, before + _SMOOTHING * (seen - before))
