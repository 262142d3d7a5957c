"""How `/v1/messages` is told: ids begin with `chatcmpl-`, and `input_tokens` leaves out the cached ones."""

from __future__ import annotations

from typing import Final

import orjson

from slotgate.gateway.testing.fake.net.wire import Json, data, named
from slotgate.gateway.testing.fake.protocols.answer import Told
from slotgate.gateway.testing.fake.script.answer_content import Kind, Token

__all__ = ["MessagesTeller"]

_STOP_REASONS: Final = {"length": "max_tokens", "tool_calls": "tool_use"}


class MessagesTeller:
    def __init__(self, told: Told) -> None:
        self.told = told
        self._opened = False
        self._block = -1
        self._kind: Kind | None = None

    def say(self, token: Token) -> bytes:
        self.told.say(token)
        begun = self._opening()
        if token.kind is not self._kind and token.kind is not Kind.ARGUMENTS:
            begun += self._begun(token)
        self._kind = Kind.CALL if token.kind is Kind.ARGUMENTS else token.kind
        return begun + self._delta(token)

    def end(self) -> list[bytes]:
        """Blocks end here and not where the next one begins; a thought is signed before."""
        told = self.told
        thought = [0] if told.reasoning else []
        signatures = (
            named("content_block_delta", index=index, delta={"type": "signature_delta", "signature": ""})
            for index in thought
        )
        stops = (named("content_block_stop", index=index) for index in range(self._block + 1))
        end = {"stop_reason": self._stop_reason, "stop_sequence": None}
        closing = [
            named("message_delta", delta=end, usage={"output_tokens": told.predicted}),
            named("message_stop"),
        ]
        return [b"".join([self._opening(), *signatures, *stops, *closing])]

    def whole(self) -> Json:
        told = self.told
        content: list[Json] = []
        if told.reasoning:
            content.append({"type": "thinking", "thinking": told.reasoning, "signature": ""})
        if told.text:
            content.append({"type": "text", "text": told.text})
        content += [
            {"type": "tool_use", "id": told.voice.new_id(), "name": name, "input": _parsed(arguments)}
            for name, arguments in told.calls
        ]
        return self._message(content, self._stop_reason, told.predicted)

    def failed(self, error: Json) -> bytes:
        """The bare object, without the type that Anthropic puts around it."""
        return b"event: error\n" + data(error)

    # -- the parts

    @property
    def _stop_reason(self) -> str:
        return _STOP_REASONS.get(self.told.finish, "end_turn")

    def _opening(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        return named("message_start", message=self._message([], None, 0))

    def _begun(self, token: Token) -> bytes:
        self._block += 1
        blocks: dict[Kind, Json] = {
            Kind.TEXT: {"type": "text", "text": ""},
            Kind.REASONING: {"type": "thinking", "thinking": ""},
        }
        block = blocks.get(token.kind)
        if block is None:
            block = {"type": "tool_use", "id": self.told.voice.new_id(), "name": token.text}
        return named("content_block_start", index=self._block, content_block=block)

    def _delta(self, token: Token) -> bytes:
        deltas: dict[Kind, Json] = {
            Kind.TEXT: {"type": "text_delta", "text": token.text},
            Kind.REASONING: {"type": "thinking_delta", "thinking": token.text},
            Kind.ARGUMENTS: {"type": "input_json_delta", "partial_json": token.text},
        }
        delta = deltas.get(token.kind)
        return b"" if delta is None else named("content_block_delta", index=self._block, delta=delta)

    def _message(self, content: list[Json], stop_reason: str | None, predicted: int) -> Json:
        voice = self.told.voice
        return {
            "id": f"chatcmpl-{voice.id}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": voice.model,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {
                "cache_read_input_tokens": voice.cached_tokens,
                "input_tokens": voice.prompt_tokens - voice.cached_tokens,
                "output_tokens": predicted,
            },
        }


def _parsed(arguments: str) -> object:
    try:
        return orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return {}
