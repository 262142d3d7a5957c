"""A promise about a crowd: a figure and its bounds. The tests fail if one is broken."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Promise"]


@dataclass(frozen=True, slots=True)
class Promise:
    """A figure that must be between two bounds."""

    crowd: str
    figure: str
    least: float
    most: float
    result: float

    @property
    def kept(self) -> bool:
        return self.least <= self.result <= self.most
