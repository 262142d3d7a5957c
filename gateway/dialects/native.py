"""llama.cpp's own `/completion` and `/infill`: chunks with `content`, the last of each part says `stop`.

Every chunk states other counts, so none of them can take the short way.
"""

from __future__ import annotations

from gateway.chunks import Chunk, Identity
from gateway.dialects.dialect import Dialect, FrameOptions
from gateway.metering import Meter

__all__ = ["NativeDialect"]


class NativeDialect(Dialect):
    def __init__(self, identity: Identity, meter: Meter, options: FrameOptions) -> None:
        super().__init__(identity, meter, options)
        self._left = options.parts

    def ends(self, chunk: Chunk) -> bool:
        if chunk.get("stop") is True:
            self._left -= 1
        return self._left <= 0

    def has_output(self, chunk: Chunk) -> bool:
        return bool(chunk.get("content"))
