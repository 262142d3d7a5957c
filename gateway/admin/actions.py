"""The actions that an operator can take on a running gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["BackendActions", "OperatorActions", "ReloadReport"]


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """The result of a reload that was applied."""

    needs_restart: tuple[str, ...]
    """Keys whose new values take effect only after the gateway has been restarted."""
    next_load: tuple[str, ...]
    """Backends whose changed settings take effect when their process is loaded the next time."""
    revoked: int
    """Number of waiting requests that were ended because their key is no longer valid."""


class BackendActions(Protocol):
    """The actions on one backend. Each takes effect at once; its work may go on after the call has returned.

    Each raises `ClientError`: 404 if there is no such backend, 409 if the backend has no process to act on.
    """

    def possible(self, name: str) -> tuple[str, ...]:
        """Return the names of the actions that are possible for this backend now."""

    def drain(self, name: str) -> None:
        """Give the backend no new requests. Running requests finish."""

    def resume(self, name: str) -> None:
        """End `drain`: the backend gets new requests again."""

    def load(self, name: str) -> None:
        """Start the backend's process, even if no request needs its model."""

    def unload(self, name: str) -> None:
        """Stop the backend's process when its leases have ended or their time limit has passed."""

    def restart(self, name: str) -> None:
        """Stop the backend's process as `unload` does, then start it again."""


@dataclass(frozen=True, slots=True)
class OperatorActions:
    """All actions that this gateway offers to its operators."""

    backends: BackendActions | None = None
    """The actions on backends. None if no backend can be acted on; then these endpoints do not exist."""
    reload: Callable[[], Awaitable[ReloadReport]] | None = None
    """Reads the configuration again. Raises `SettingsError`. None if there is no configuration file."""
