"""The protocols in which a stream may speak to its client: one small description each."""

from gateway.dialects.dialect import DONE, Dialect, FrameOptions, KeepAlive
from gateway.dialects.messages import MessagesDialect
from gateway.dialects.native import NativeDialect
from gateway.dialects.openai import ChatDialect, ChoicesDialect, TextDialect
from gateway.dialects.responses import ResponsesDialect
from gateway.dialects.transcription import TranscriptionDialect

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
