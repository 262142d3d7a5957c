"""What is wrong with a configuration: every fault with its place, all of them in one error."""

from dataclasses import dataclass

from slotgate.gateway.settings.places import Loc


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to correct.

    `place` is what an operator would search for: `server.port`, `tenant "team-a".weight`,
    `backend[0].url`, `SLOTGATE_SERVER__PORT`, or a line of the file.
    """

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check across values found at `loc`, concluded from the values at `reads` too."""

    loc: Loc
    message: str
    reads: tuple[Loc, ...] = ()


class SettingsError(Exception):
    """The configuration cannot be used. Carries all its faults; its text has one a line."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults
