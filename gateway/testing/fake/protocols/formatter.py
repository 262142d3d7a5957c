"""The interface of the formatters, which turn the tokens of an answer into the bytes of one protocol.

A formatter does no IO and belongs to one choice. Each item that it returns becomes one HTTP chunk, because
llama-server's own writes end there.
"""

from __future__ import annotations

from typing import Protocol

from slotgate.gateway.testing.fake.net.wire import Json
from slotgate.gateway.testing.fake.protocols.answer import GeneratedAnswer
from slotgate.gateway.testing.fake.script.answer_content import Token

__all__ = ["AnswerFormatter"]


class AnswerFormatter(Protocol):
    """Formats one choice of an answer."""

    answer: GeneratedAnswer

    def add(self, token: Token) -> bytes:
        """Add a token. Return its events, after the events that open the stream if it is the first token."""
        ...

    def finish(self) -> list[bytes]:
        """Return the events behind the last token of this choice, without those of the whole stream."""
        ...

    def body(self) -> Json:
        """Return the body of the same answer without a stream."""
        ...

    def error_event(self, error: Json) -> bytes:
        """Return the event of an error inside the stream."""
        ...
