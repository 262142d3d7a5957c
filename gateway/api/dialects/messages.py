"""Anthropic's messages: named events, ended by `message_stop`.

Keep-alives are `ping` events in both forms, because some clients do not count comments as progress.
llama-server writes ids and errors as OpenAI has them. It also begins a tool use without `input`. Clients
assemble the input from later events, so they would have none for a call without arguments.
"""

from __future__ import annotations

from typing import Any

from slotgate.gateway.api.chunks import Chunk
from slotgate.gateway.api.dialects.dialect import Dialect, named_frame
from slotgate.gateway.http.error_formats import anthropic_body
from slotgate.gateway.http.errors import GatewayError

__all__ = ["MessagesDialect"]

_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""Delta type -> the member that holds its text."""


class MessagesDialect(Dialect):
    named = True
    heartbeat = b'event: ping\ndata: {"type": "ping"}\n\n'

    def error_in(self, chunk: Chunk) -> dict[str, Any] | None:
        if chunk.get("type") == "error" or "type" not in chunk or "error" in chunk:
            error = chunk.get("error") or chunk
            return error if isinstance(error, dict) else {"message": str(error)}
        return None

    def ends_part(self, chunk: Chunk) -> bool:
        return chunk.get("type") == "message_stop"

    def has_output(self, chunk: Chunk) -> bool:
        return _text(chunk) is not None

    def is_reasoning(self, chunk: Chunk) -> bool:
        return _text(chunk) is not None and chunk["delta"]["type"] == "thinking_delta"

    def plain(self, chunk: Chunk) -> tuple[str, str] | None:
        text = _text(chunk)
        if text is None or len(chunk) != 3 or len(chunk["delta"]) != 2:
            return None
        return f"{chunk['delta']['type']} {chunk.get('index')}", text

    def rewritten(self, chunk: Chunk) -> list[Chunk]:
        message = chunk.get("message")
        if isinstance(message, dict):
            message["id"] = self._identity.id
            message["model"] = self._identity.model
        block = chunk.get("content_block")
        if isinstance(block, dict) and block.get("type") == "tool_use":
            block.setdefault("input", {})
        return [chunk]

    def frame(self, chunk: Chunk) -> bytes:
        return named_frame(chunk)

    def failure(self, error: GatewayError) -> bytes:
        return b"event: error\ndata: " + anthropic_body(error) + b"\n\n"


def _text(chunk: Chunk) -> str | None:
    delta = chunk.get("delta")
    if chunk.get("type") != "content_block_delta" or not isinstance(delta, dict):
        return None
    name = _TEXTS.get(str(delta.get("type")))
    text = delta.get(name) if name is not None else None
    return text if isinstance(text, str) and text else None
