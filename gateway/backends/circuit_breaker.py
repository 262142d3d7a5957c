"""When a backend that looks healthy gets no more work: requests in a row got no event in time.

    CLOSED --TRIPS_AFTER in a row--> OPEN --REST_S--> HALF_OPEN --an event--> CLOSED
                                       ▲------ none in time ------'

Whatever a backend answers is an answer, an error too: only the silence of streams counts. An answer that is
no stream begins when all of it is made, so its silence says nothing. Nothing is asked for the sake of asking;
in HALF_OPEN the next request is the trial, one at a time.

This module never awaits; the time is passed in.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["REST_S", "TRIPS_AFTER", "CircuitBreaker", "CircuitState"]

TRIPS_AFTER: Final = 3
REST_S: Final = 30.0


class CircuitState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class CircuitBreaker:
    def __init__(self) -> None:
        self.state = CircuitState.CLOSED
        self._silences = 0
        self._opened_at = 0.0

    def __repr__(self) -> str:
        return f"<CircuitBreaker {self.state.value}, {self._silences} without an event>"

    @property
    def reason(self) -> str:
        """Why it is not closed, or nothing."""
        closed = self.state is CircuitState.CLOSED
        return "" if closed else f"{self._silences} requests in a row had no event in time"

    @property
    def retry_at(self) -> float | None:
        """When `rested` changes something."""
        return self._opened_at + REST_S if self.state is CircuitState.OPEN else None

    def answered(self) -> None:
        self.state = CircuitState.CLOSED
        self._silences = 0

    def silent(self, now: float) -> None:
        """A request had no event in time."""
        self._silences += 1
        if self.state is CircuitState.HALF_OPEN or self._silences >= TRIPS_AFTER:
            self.state = CircuitState.OPEN
            self._opened_at = now

    def rested(self, now: float) -> None:
        if self.retry_at is not None and now >= self.retry_at:
            self.state = CircuitState.HALF_OPEN
