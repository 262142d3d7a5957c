"""The formatter of each endpoint, and the answer that several choices make together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from slotgate.gateway.testing.fake.protocols.answer import GeneratedAnswer
from slotgate.gateway.testing.fake.protocols.chat import ChatFormatter
from slotgate.gateway.testing.fake.protocols.endpoints import LlamaEndpoint
from slotgate.gateway.testing.fake.protocols.formatter import AnswerFormatter
from slotgate.gateway.testing.fake.protocols.messages import MessagesFormatter
from slotgate.gateway.testing.fake.protocols.native import NativeFormatter
from slotgate.gateway.testing.fake.protocols.request import LlamaRequest
from slotgate.gateway.testing.fake.protocols.responses import ResponsesFormatter
from slotgate.gateway.testing.fake.protocols.text import TextFormatter
from slotgate.gateway.testing.fake.protocols.transcription import TranscriptFormatter

__all__ = ["FORMATTERS", "combined_answer"]

FORMATTERS: Final[dict[LlamaEndpoint, Callable[[GeneratedAnswer], AnswerFormatter]]] = {
    LlamaEndpoint.CHAT: ChatFormatter,
    LlamaEndpoint.TEXT: TextFormatter,
    LlamaEndpoint.NATIVE: NativeFormatter,
    LlamaEndpoint.INFILL: NativeFormatter,
    LlamaEndpoint.RESPONSES: ResponsesFormatter,
    LlamaEndpoint.MESSAGES: MessagesFormatter,
    LlamaEndpoint.SPEECH: TranscriptFormatter,
}


def combined_answer(request: LlamaRequest, formatters: Sequence[AnswerFormatter]) -> object:
    """Return all choices as one body. Usage and timings are those of the first, as in llama-server."""
    body = [formatter.body() for formatter in formatters]
    if len(body) == 1:
        return body[0]
    if request.endpoint in (LlamaEndpoint.NATIVE, LlamaEndpoint.INFILL):
        return body
    return {**body[0], "choices": [choice for one in body for choice in one["choices"]]}
