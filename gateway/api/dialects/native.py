"""llama.cpp's own `/completion` and `/infill`: chunks with `content`, the last of each part says `stop`.

Every chunk states other counts, so none of them can take the short way.
"""

from __future__ import annotations

from slotgate.gateway.api.chunks import Chunk
from slotgate.gateway.api.dialects.dialect import Dialect

__all__ = ["NativeDialect"]


class NativeDialect(Dialect):
    def ends_part(self, chunk: Chunk) -> bool:
        """`response_fields` in a request choose the members of the last chunk, and of no other."""
        return chunk.get("stop", True) is True

    def has_output(self, chunk: Chunk) -> bool:
        return bool(chunk.get("content"))
