"""What an operator can have done to a running gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Operations", "Orders", "ReloadReport"]


@dataclass(frozen=True, slots=True)
class ReloadReport:
    needs_restart: tuple[str, ...]
    """Keys whose new values take effect in a new process only."""
    revoked: int
    """Requests that waited under a key which is no longer good, and were ended."""


class Orders(Protocol):
    """What can be ordered of one backend. All take effect at once, and go on after they have returned.

    Each raises `ClientError`: 404 where there is no such backend, 409 where the order makes no sense.
    """

    def possible(self, name: str) -> tuple[str, ...]:
        """Which of these words make sense for this backend now."""

    def drain(self, name: str) -> None:
        """No new work; what runs goes on."""

    def resume(self, name: str) -> None:
        """The end of `drain`."""

    def load(self, name: str) -> None:
        """Have its process loaded, whether or not somebody asks for its model."""

    def unload(self, name: str) -> None:
        """Stop its process when its leases have ended, or have had their time."""

    def restart(self, name: str) -> None:
        """The same, and load it again."""


@dataclass(frozen=True, slots=True)
class Operations:
    orders: Orders | None = None
    reload: Callable[[], Awaitable[ReloadReport]] | None = None
    """None where there is no configuration to read again. Raises `SettingsError`."""
