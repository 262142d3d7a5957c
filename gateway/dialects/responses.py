"""OpenAI's Responses: named events, ended by `response.completed` or `response.incomplete`.

llama-server leaves out what official clients build on: a number for every event, the place of an item and of
its part, and model and time in the first events. They are added where they are missing.
"""

from __future__ import annotations

from typing import Any

from gateway.chunks import Chunk, Identity
from gateway.dialects.dialect import Dialect, FrameOptions, named_frame
from gateway.errors import GatewayError
from gateway.metering import Meter

__all__ = ["ResponsesDialect"]

_LAST = ("response.completed", "response.incomplete")


class ResponsesDialect(Dialect):
    def __init__(self, identity: Identity, meter: Meter, options: FrameOptions) -> None:
        super().__init__(identity, meter, options)
        self._number = 0
        self._response: Chunk | None = None
        """The last response object that left; None before `response.created`."""
        self._items: list[str] = []
        """Ids of the output items, in the order in which they were added."""
        self._parts = 0
        """Parts of the last item."""

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
        self._place(chunk)
        chunk.setdefault("sequence_number", self._number)
        self._number += 1
        return [chunk]

    def learns(self) -> bool:
        return False

    def frame(self, chunk: Chunk) -> bytes:
        return named_frame(chunk)

    def failure(self, error: GatewayError) -> bytes:
        said = error.payload()
        if self._response is None:
            event = {"type": "error", "code": str(said["code"]), "message": said["message"], "param": None}
            return named_frame({**event, "sequence_number": self._number})
        failure = {"code": str(said["code"]), "message": said["message"]}
        response = {**self._response, "status": "failed", "error": failure}
        return named_frame({"type": "response.failed", "response": response, "sequence_number": self._number})

    def _remember(self, response: Chunk) -> None:
        response["model"] = self._identity.model
        response.setdefault("created_at", self._identity.created)
        self._response = response

    def _place(self, chunk: Chunk) -> None:
        """Which item of the output, and which part of it, an event is about."""
        kind = str(chunk.get("type", ""))
        item = chunk.get("item")
        named = item.get("id") if isinstance(item, dict) else chunk.get("item_id")
        if kind == "response.output_item.added":
            self._items.append(str(named))
            self._parts = 0
        elif kind == "response.content_part.added":
            self._parts += 1
        if named is None:
            return
        if str(named) in self._items:
            chunk.setdefault("output_index", self._items.index(str(named)))
        if "output_text" in kind or "content_part" in kind or "refusal" in kind or "reasoning_text" in kind:
            chunk.setdefault("content_index", max(0, self._parts - 1))
