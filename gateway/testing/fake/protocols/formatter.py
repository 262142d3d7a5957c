"""How one protocol tells an answer: each token becomes the bytes of an event, the end becomes the last ones.

A teller is sans-IO and belongs to one choice. What it returns is written as one HTTP chunk an item, because
that is where llama-server's own writes end.
"""

from __future__ import annotations

from typing import Protocol

from slotgate.gateway.testing.fake.net.wire import Json
from slotgate.gateway.testing.fake.protocols.answer import Told
from slotgate.gateway.testing.fake.script.answer_content import Token

__all__ = ["Teller"]


class Teller(Protocol):
    told: Told

    def say(self, token: Token) -> bytes:
        """The events of one token, with those that open the stream before the first one."""
        ...

    def end(self) -> list[bytes]:
        """The events behind the last token; those of a choice, not of the whole stream."""
        ...

    def whole(self) -> Json:
        """The same as an answer that is no stream."""
        ...

    def failed(self, error: Json) -> bytes:
        """The event of an error inside the stream."""
        ...
