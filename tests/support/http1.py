"""HTTP/1.1 framing for both ends of a test: that of the shipped scripted llama-server, strict and by hand."""

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
