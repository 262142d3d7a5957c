"""The content of an answer, token by token, from a script or from a seed.

Everything here is a value. Everything random comes from the generator that is passed in.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = ["AnswerContent", "Call", "Token", "TokenKind", "made_up_words", "seeded_id", "split_words"]

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PIECE: Final = re.compile(r"\s*\S+|\s+$")
_ARGUMENT: Final = re.compile(r'[{\[]|\s*"(?:[^"\\]|\\.)*":?|[}\]]|[^{}\[\]"]+|.', re.DOTALL)
"""The pieces in which the arguments of a call come: brackets, names with their colon, values."""
_SENTENCE: Final = (
    "the a one some every no it we you they time year people way day thing life child world house week "
    "system question work night point home water room area story fact month lot right study book eye job "
    "old great small large next early young good new first last is was has had says goes makes sees comes "
    "looks wants gives uses finds tells asks works feels and or but of in to with on for at by from"
)


class TokenKind(Enum):
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"
    """The beginning of a tool call. The text is the name of the function."""
    ARGUMENTS = "arguments"
    """A piece of the arguments of the latest call."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. `arguments` is JSON text as a model writes it."""

    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class AnswerContent:
    """The content in order: reasoning, text, tool calls."""

    text: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    """The finish reason in OpenAI's words. None derives it from the content."""

    def tokens(self) -> Iterator[Token]:
        for piece in self.reasoning:
            yield Token(TokenKind.REASONING, piece)
        for piece in self.text:
            yield Token(TokenKind.TEXT, piece)
        for call in self.calls:
            yield Token(TokenKind.CALL, call.name)
            for piece in _ARGUMENT.findall(call.arguments):
                yield Token(TokenKind.ARGUMENTS, piece)

    @property
    def finish_reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")


def split_words(text: str) -> tuple[str, ...]:
    """Return the text, cut in front of its white space as tokens of models are."""
    return tuple(_PIECE.findall(text))


def made_up_words(count: int, generator: random.Random) -> tuple[str, ...]:
    """Return `count` random words without meaning."""
    words = _SENTENCE.split(" ")
    return tuple(f" {generator.choice(words)}" for _ in range(count))


def seeded_id(generator: random.Random) -> str:
    """Return an id of 32 letters and digits, as llama-server makes ids."""
    return "".join(generator.choices(_ALPHABET, k=32))
