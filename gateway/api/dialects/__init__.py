"""The streaming protocols that clients speak: one class for each."""

from __future__ import annotations

from slotgate.gateway.api.dialects.dialect import DONE, Dialect, FrameOptions, KeepAlive
from slotgate.gateway.api.dialects.messages import MessagesDialect
from slotgate.gateway.api.dialects.native import NativeDialect
from slotgate.gateway.api.dialects.openai import ChatDialect, ChoicesDialect, TextDialect
from slotgate.gateway.api.dialects.responses import ResponsesDialect
from slotgate.gateway.api.dialects.transcription import TranscriptionDialect

__all__ = [
    "DONE",
    "ChatDialect",
    "ChoicesDialect",
    "Dialect",
    "FrameOptions",
    "KeepAlive",
    "MessagesDialect",
    "NativeDialect",
    "ResponsesDialect",
    "TextDialect",
    "TranscriptionDialect",
]
