"""OpenAI's Responses: named events, ended by `response.completed` or `response.incomplete`.

llama-server leaves out what official clients build on: a number for every event, the place of an item and of
its part, the beginning of a part of reasoning, the id of a function call, and model, time and output in the
first events. They are added where they are missing.
"""

from __future__ import annotations

from typing import Any

from slotgate.gateway.api.chunks import Chunk, Identity
from slotgate.gateway.api.dialects.dialect import Dialect, FrameOptions, named_frame
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.http.errors import GatewayError

__all__ = ["ResponsesDialect"]

_LAST = ("response.completed", "response.incomplete")


class ResponsesDialect(Dialect):
    def __init__(self, identity: Identity, token_usage: TokenUsage, options: FrameOptions) -> None:
        super().__init__(identity, token_usage, options)
        self._number = 0
        self._response: Chunk | None = None
        """The last response object that left; None before `response.created`."""
        self._parts: dict[str, int] = {}
        """How many parts each output item has, by id, in the order in which the items were added."""

    def error_in(self, chunk: Chunk) -> dict[str, Any] | None:
        kind = chunk.get("type")
        response = chunk.get("response")
        if kind == "response.failed" and isinstance(response, dict):
            self._remember(response)
            error = response.get("error") or {"message": "the response failed"}
        elif kind == "error" or not isinstance(kind, str) or not kind.startswith("response."):
            error = chunk.get("error") or chunk
        else:
            return None
        return error if isinstance(error, dict) else {"message": str(error)}

    def ends_part(self, chunk: Chunk) -> bool:
        return chunk.get("type") in _LAST

    def has_output(self, chunk: Chunk) -> bool:
        return str(chunk.get("type", "")).endswith(".delta") and bool(chunk.get("delta"))

    def take(self, chunk: Chunk) -> list[Chunk]:
        response = chunk.get("response")
        if isinstance(response, dict):
            self._remember(response)
        chunks = [*self._reasoning_begins(chunk), chunk]
        for one in chunks:
            self._place(one)
            one.setdefault("sequence_number", self._number)
            self._number += 1
        return chunks

    def learns(self) -> bool:
        return False

    def frame(self, chunk: Chunk) -> bytes:
        return named_frame(chunk)

    def failure(self, error: GatewayError) -> bytes:
        said = error.payload()
        if self._response is None:
            event = {"type": "error", "code": str(said["code"]), "message": said["message"], "param": None}
            # Official clients raise an exception for the member `error`, and for nothing else in this event.
            return named_frame({**event, "sequence_number": self._number, "error": said})
        failure = {"code": str(said["code"]), "message": said["message"]}
        response = {**self._response, "status": "failed", "error": failure}
        return named_frame({"type": "response.failed", "response": response, "sequence_number": self._number})

    def _remember(self, response: Chunk) -> None:
        response["model"] = self._identity.model
        response.setdefault("created_at", self._identity.created)
        output = response.setdefault("output", [])
        for item in output if isinstance(output, list) else ():
            _name_call(item)
        self._response = response

    def _reasoning_begins(self, chunk: Chunk) -> list[Chunk]:
        """llama-server does not say that a part begins; official clients add text only to one that did."""
        named = chunk.get("item_id")
        if chunk.get("type") != "response.reasoning_text.delta" or self._parts.get(str(named)) != 0:
            return []
        part = {"type": "reasoning_text", "text": ""}
        return [{"type": "response.content_part.added", "item_id": named, "part": part}]

    def _place(self, chunk: Chunk) -> None:
        """Which item of the output, and which part of it, an event is about."""
        kind = str(chunk.get("type", ""))
        item = chunk.get("item")
        _name_call(item)
        named = str(item.get("id") if isinstance(item, dict) else chunk.get("item_id"))
        if kind == "response.output_item.added":
            self._parts[named] = 0
        if named not in self._parts:
            return
        if kind == "response.content_part.added":
            self._parts[named] += 1
        chunk.setdefault("output_index", list(self._parts).index(named))
        if "output_text" in kind or "content_part" in kind or "refusal" in kind or "reasoning_text" in kind:
            chunk.setdefault("content_index", max(0, self._parts[named] - 1))


def _name_call(item: object) -> None:
    """A function call without an id gets that by which its arguments name it: the id of the call."""
    if isinstance(item, dict) and "call_id" in item:
        item.setdefault("id", item["call_id"])
