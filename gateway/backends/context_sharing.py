"""Concludes from all that is known about a backend if its slots share one context.

`kv_sharing.py` lists the sources and why they count in this order. This module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from slotgate.gateway.backends.context_overflow import ContextOverflow
from slotgate.gateway.backends.kv_sharing import kv_unified_from_sizes

__all__ = ["ContextSharing", "ContextSources"]


@dataclass(frozen=True, slots=True)
class ContextSharing:
    unified: bool
    because: str
    """The source, in words."""
    assumed: bool = False
    """True if nothing states it."""


class ContextSources:
    """Each source is None while it says nothing."""

    def __init__(self, setting: bool | None) -> None:
        self.setting = setting
        """The setting `kv_unified`."""
        self.process: bool | None = None
        """The log of a process that the gateway runs says it, or else its command."""
        self.command: bool | None = None
        """The command of another process on this machine says it."""
        self.overflow = ContextOverflow()

    def __repr__(self) -> str:
        return f"<ContextSources {self.setting} {self.process} {self.command} {self.overflow!r}>"

    def conclusion(self, n_ctx: int | None, slots: int, n_ctx_train: int | None) -> ContextSharing:
        """Return the conclusion. `n_ctx` is the context of one slot."""
        is_shared = self.overflow.is_shared or None
        for value, because in (
            (self.setting, "the setting kv_unified says so"),
            (self.process, "its log or its command says so"),
            (self.command, "the command of the process that listens there says so"),
            (is_shared, "requests have exceeded the context together"),
        ):
            if value is not None:
                return ContextSharing(value, because)
        if kv_unified_from_sizes(n_ctx, slots, n_ctx_train):
            return ContextSharing(True, "each of its four slots has the context of the model", assumed=True)
        return ContextSharing(False, "nothing says that its slots share one", assumed=True)
