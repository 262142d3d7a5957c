"""What an answer says, token by token, and how it is found out: from a script or from a seed.

Everything here is a value, and everything random comes from the generator that is passed in.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = ["Call", "Kind", "Speech", "Token", "invented", "pieces_of", "seeded_id"]

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PIECE: Final = re.compile(r"\s*\S+|\s+$")
_ARGUMENT: Final = re.compile(r'[{\[]|\s*"(?:[^"\\]|\\.)*":?|[}\]]|[^{}\[\]"]+|.', re.DOTALL)
"""Pieces in which the arguments of a call come: brackets, names with their colon, values."""
_SENTENCE: Final = (
    "the a one some every no it we you they time year people way day thing life child world house week "
    "system question work night point home water room area story fact month lot right study book eye job "
    "old great small large next early young good new first last is was has had says goes makes sees comes "
    "looks wants gives uses finds tells asks works feels and or but of in to with on for at by from"
)


class Kind(Enum):
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"
    """The beginning of a tool call: its name."""
    ARGUMENTS = "arguments"
    """A piece of the arguments of the call that began last."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. `arguments` is JSON as a model writes it."""

    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class Speech:
    """Thoughts first, then text, then calls."""

    text: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    """The reason in OpenAI's words; None follows from the rest."""

    def tokens(self) -> Iterator[Token]:
        for piece in self.reasoning:
            yield Token(Kind.REASONING, piece)
        for piece in self.text:
            yield Token(Kind.TEXT, piece)
        for call in self.calls:
            yield Token(Kind.CALL, call.name)
            for piece in _ARGUMENT.findall(call.arguments):
                yield Token(Kind.ARGUMENTS, piece)

    @property
    def finish_reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")


def pieces_of(text: str) -> tuple[str, ...]:
    """The text cut in front of its white space, as models speak it; joined, they are the text."""
    return tuple(_PIECE.findall(text))


def invented(count: int, generator: random.Random) -> tuple[str, ...]:
    """So many words that mean nothing."""
    words = _SENTENCE.split(" ")
    return tuple(f" {generator.choice(words)}" for _ in range(count))


def seeded_id(generator: random.Random) -> str:
    """32 letters and digits, as llama-server makes them."""
    return "".join(generator.choices(_ALPHABET, k=32))
