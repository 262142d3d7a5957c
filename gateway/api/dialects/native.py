"""llama.cpp's own `/completion` and `/infill`: chunks with `content`. The last chunk of each part has `stop`.

Every chunk states counts that change, so no chunk can be written from a template.
"""

from __future__ import annotations

from slotgate.gateway.api.chunks import Chunk
from slotgate.gateway.api.dialects.dialect import Dialect

__all__ = ["NativeDialect"]


class NativeDialect(Dialect):
    def ends_part(self, chunk: Chunk) -> bool:
        """Return True if `stop` is true or missing.

        A client can leave it out with `response_fields`, which applies to the last chunk of a part only.
        """
        return chunk.get("stop", True) is True

    def take(self, chunk: Chunk) -> list[Chunk]:
        if self.ends_part(chunk):
            for name in self.options.withheld:
                chunk.pop(name, None)
        return super().take(chunk)

    def has_output(self, chunk: Chunk) -> bool:
        return bool(chunk.get("content"))
