"""What an operator can have done to a running gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

__all__ = ["Operations", "ReloadReport"]


@dataclass(frozen=True, slots=True)
class ReloadReport:
    needs_restart: tuple[str, ...]
    """Keys whose new values take effect in a new process only."""
    revoked: int
    """Requests that waited under a key which is no longer good, and were ended."""


@dataclass(frozen=True, slots=True)
class Operations:
    reload: Callable[[], Awaitable[ReloadReport]] | None = None
    """None where there is no configuration to read again. Raises `SettingsError`."""
