"""What a check across values has found."""

from dataclasses import dataclass

from gateway.settings.places import Loc


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault at `loc`, that was concluded from the values at `reads` too."""

    loc: Loc
    message: str
    reads: tuple[Loc, ...] = ()
