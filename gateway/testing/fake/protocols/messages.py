"""Formats answers of `/v1/messages` as llama-server does.

Ids begin with `chatcmpl-`, and `input_tokens` leaves out the cached tokens.
"""

from __future__ import annotations

from typing import Final

import orjson

from slotgate.gateway.testing.fake.net.wire import Json, data, named
from slotgate.gateway.testing.fake.protocols.answer import GeneratedAnswer
from slotgate.gateway.testing.fake.script.answer_content import Token, TokenKind

__all__ = ["MessagesFormatter"]

_STOP_REASONS: Final = {"length": "max_tokens", "tool_calls": "tool_use"}


class MessagesFormatter:
    """Formats one message of Anthropic's protocol."""

    def __init__(self, answer: GeneratedAnswer) -> None:
        self.answer = answer
        self._opened = False
        self._block = -1
        self._kind: TokenKind | None = None

    def add(self, token: Token) -> bytes:
        self.answer.append(token)
        begun = self._opening()
        if token.kind is not self._kind and token.kind is not TokenKind.ARGUMENTS:
            begun += self._begun(token)
        self._kind = TokenKind.CALL if token.kind is TokenKind.ARGUMENTS else token.kind
        return begun + self._delta(token)

    def finish(self) -> list[bytes]:
        """End all blocks. llama-server ends them here, not before the next one, and signs reasoning."""
        answer = self.answer
        thought = [0] if answer.reasoning else []
        signatures = (
            named("content_block_delta", index=index, delta={"type": "signature_delta", "signature": ""})
            for index in thought
        )
        stops = (named("content_block_stop", index=index) for index in range(self._block + 1))
        finish = {"stop_reason": self._stop_reason, "stop_sequence": None}
        closing = [
            named("message_delta", delta=finish, usage={"output_tokens": answer.predicted}),
            named("message_stop"),
        ]
        return [b"".join([self._opening(), *signatures, *stops, *closing])]

    def body(self) -> Json:
        answer = self.answer
        content: list[Json] = []
        if answer.reasoning:
            content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
        if answer.text:
            content.append({"type": "text", "text": answer.text})
        content += [
            {"type": "tool_use", "id": answer.context.new_id(), "name": name, "input": _parsed(arguments)}
            for name, arguments in answer.calls
        ]
        return self._message(content, self._stop_reason, answer.predicted)

    def error_event(self, error: Json) -> bytes:
        """Return the bare error object. llama-server omits the type that Anthropic puts around it."""
        return b"event: error\n" + data(error)

    # -- the parts

    @property
    def _stop_reason(self) -> str:
        return _STOP_REASONS.get(self.answer.finish, "end_turn")

    def _opening(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        return named("message_start", message=self._message([], None, 0))

    def _begun(self, token: Token) -> bytes:
        self._block += 1
        blocks: dict[TokenKind, Json] = {
            TokenKind.TEXT: {"type": "text", "text": ""},
            TokenKind.REASONING: {"type": "thinking", "thinking": ""},
        }
        block = blocks.get(token.kind)
        if block is None:
            block = {"type": "tool_use", "id": self.answer.context.new_id(), "name": token.text}
        return named("content_block_start", index=self._block, content_block=block)

    def _delta(self, token: Token) -> bytes:
        deltas: dict[TokenKind, Json] = {
            TokenKind.TEXT: {"type": "text_delta", "text": token.text},
            TokenKind.REASONING: {"type": "thinking_delta", "thinking": token.text},
            TokenKind.ARGUMENTS: {"type": "input_json_delta", "partial_json": token.text},
        }
        delta = deltas.get(token.kind)
        return b"" if delta is None else named("content_block_delta", index=self._block, delta=delta)

    def _message(self, content: list[Json], stop_reason: str | None, predicted: int) -> Json:
        context = self.answer.context
        return {
            "id": f"chatcmpl-{context.id}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": context.model,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {
                "cache_read_input_tokens": context.cached_tokens,
                "input_tokens": context.prompt_tokens - context.cached_tokens,
                "output_tokens": predicted,
            },
        }


def _parsed(arguments: str) -> object:
    try:
        return orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return {}
