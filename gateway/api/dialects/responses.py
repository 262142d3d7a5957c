"""OpenAI's Responses: named events, ended by `response.completed` or `response.incomplete`.

llama-server leaves out members that OpenAI's clients need: the number of every event, the index of an item
and of its part, the event that begins a part of reasoning, the id of a function call, and model, time and
output in the first events. They are added where they are missing.
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
    named = True

    def __init__(self, identity: Identity, token_usage: TokenUsage, options: FrameOptions) -> None:
        super().__init__(identity, token_usage, options)
        self._number = 0
        self._response: Chunk | None = None
        """The last response object that was sent; None before `response.created`."""
        self._parts: dict[str, int] = {}
        """Output item id -> the number of its parts, in the order in which the items were added."""

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

    def is_reasoning(self, chunk: Chunk) -> bool:
        """Return True for the deltas of `reasoning_text` and of `reasoning_summary_text`."""
        return str(chunk.get("type", "")).startswith("response.reasoning_")

    def take(self, chunk: Chunk) -> list[Chunk]:
        response = chunk.get("response")
        if isinstance(response, dict):
            self._remember(response)
        chunks = [*self._reasoning_beginning(chunk), chunk]
        for event in chunks:
            self._add_indexes(event)
            event.setdefault("sequence_number", self._number)
            self._number += 1
        return chunks

    def uses_templates(self) -> bool:
        return False

    def frame(self, chunk: Chunk) -> bytes:
        return named_frame(chunk)

    def failure(self, error: GatewayError) -> bytes:
        payload = error.payload()
        if self._response is None:
            event = {
                "type": "error",
                "code": str(payload["code"]),
                "message": payload["message"],
                "param": None,
            }
            # OpenAI's clients raise an exception for the member `error`, and for nothing else in this event.
            return named_frame({**event, "sequence_number": self._number, "error": payload})
        failure = {"code": str(payload["code"]), "message": payload["message"]}
        response = {**self._response, "status": "failed", "error": failure}
        return named_frame({"type": "response.failed", "response": response, "sequence_number": self._number})

    def _remember(self, response: Chunk) -> None:
        response["model"] = self._identity.model
        response.setdefault("created_at", self._identity.created)
        output = response.setdefault("output", [])
        for item in output if isinstance(output, list) else ():
            _add_item_id(item)
        self._response = response

    def _reasoning_beginning(self, chunk: Chunk) -> list[Chunk]:
        """Return the event that begins a part of reasoning, if llama-server left it out.

        OpenAI's clients add text only to a part whose beginning they saw.
        """
        item_id = chunk.get("item_id")
        if chunk.get("type") != "response.reasoning_text.delta" or self._parts.get(str(item_id)) != 0:
            return []
        part = {"type": "reasoning_text", "text": ""}
        return [{"type": "response.content_part.added", "item_id": item_id, "part": part}]

    def _add_indexes(self, chunk: Chunk) -> None:
        """Add the index of the output item, and of its part, that the event is about."""
        kind = str(chunk.get("type", ""))
        item = chunk.get("item")
        _add_item_id(item)
        item_id = str(item.get("id") if isinstance(item, dict) else chunk.get("item_id"))
        if kind == "response.output_item.added":
            self._parts[item_id] = 0
        if item_id not in self._parts:
            return
        if kind == "response.content_part.added":
            self._parts[item_id] += 1
        chunk.setdefault("output_index", list(self._parts).index(item_id))
        if "output_text" in kind or "content_part" in kind or "refusal" in kind or "reasoning_text" in kind:
            chunk.setdefault("content_index", max(0, self._parts[item_id] - 1))


def _add_item_id(item: object) -> None:
    """Give a function call without an id its `call_id`, by which the events of its arguments name it."""
    if isinstance(item, dict) and "call_id" in item:
        item.setdefault("id", item["call_id"])
