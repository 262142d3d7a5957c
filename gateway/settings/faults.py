"""The faults of a configuration: each has a place and a message, and one error carries all of them."""

from __future__ import annotations

from dataclasses import dataclass

from slotgate.gateway.settings.places import Loc

__all__ = ["Finding", "SettingsError", "SettingsFault"]


@dataclass(frozen=True, slots=True)
class SettingsFault:
    """A mistake in the configuration that the operator has to correct.

    `place` is text that the operator can search for: `server.port`, `tenant "team-a".weight`,
    `backend[0].url`, `SLOTGATE_SERVER__PORT`, or a line of the file.
    """

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault at `loc` that a check across several settings found.

    The check also read the values at `reads`.
    """

    loc: Loc
    message: str
    reads: tuple[Loc, ...] = ()


class SettingsError(Exception):
    """Raised if the configuration cannot be used. It carries all faults; its text has one fault per line."""

    def __init__(self, faults: tuple[SettingsFault, ...]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults
