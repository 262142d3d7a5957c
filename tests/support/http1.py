"""The strict HTTP/1.1 framing of the scripted llama-server, for both ends of a test."""

from __future__ import annotations

from slotgate.gateway.testing.fake.net.http1 import (
    BodyReader,
    FramingError,
    Head,
    Message,
    MessageReader,
    parse_head,
)

__all__ = ["BodyReader", "FramingError", "Head", "Message", "MessageReader", "parse_head"]
