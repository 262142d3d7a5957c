"""Audio transcription: `transcript.text.delta` events, ended by `[DONE]`."""

from __future__ import annotations

from slotgate.gateway.api.chunks import Chunk
from slotgate.gateway.api.dialects.dialect import Dialect

__all__ = ["TranscriptionDialect"]


class TranscriptionDialect(Dialect):
    done = b"[DONE]"

    def has_output(self, chunk: Chunk) -> bool:
        return bool(chunk.get("delta"))

    def plain(self, chunk: Chunk) -> tuple[str, str] | None:
        text = chunk.get("delta")
        if chunk.keys() == {"type", "delta"} and isinstance(text, str) and text:
            return str(chunk["type"]), text
        return None
