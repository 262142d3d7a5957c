"""The cache of a llama-server whose slots share one context (`--kv-unified`)."""

from __future__ import annotations

from typing import Protocol

__all__ = ["CacheUser", "KvCache"]


class CacheUser(Protocol):
    """A generation that occupies cells of the cache."""

    def abort(self) -> None:
        """End the generation, because the cache is full."""
        ...


class KvCache:
    """A number of cells for all slots. When they are used up, every running generation ends."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self._used: dict[CacheUser, int] = {}

    def __repr__(self) -> str:
        return f"<KvCache {sum(self._used.values())}/{self.cells} cells used>"

    def use(self, generation: CacheUser, cells: int) -> None:
        """Set the number of cells that the generation occupies. Overflow aborts all generations."""
        self._used[generation] = cells
        if sum(self._used.values()) > self.cells:
            self.exhaust()

    def exhaust(self) -> None:
        for generation in list(self._used):
            generation.abort()

    def leave(self, generation: CacheUser) -> None:
        self._used.pop(generation, None)
