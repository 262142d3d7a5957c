"""Gives no new requests to a backend that looks healthy while its requests get no event in time.

    CLOSED --TRIPS_AFTER in a row--> OPEN --REST_S--> HALF_OPEN --an event--> CLOSED
                                       ▲------ none in time ------'

Only streams count, and only if no event comes in time. An error is an answer, too. An answer that is not a
stream begins when all of it is generated, so its silence says nothing. No extra request is sent as a test: in
HALF_OPEN the next client request is the trial, and only one runs at a time.

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
        """The reason why it is not closed, or an empty string."""
        closed = self.state is CircuitState.CLOSED
        return "" if closed else f"{self._silences} requests in a row had no event in time"

    @property
    def retry_at(self) -> float | None:
        """The time from which `rested` half-opens the breaker; None if it is not open."""
        return self._opened_at + REST_S if self.state is CircuitState.OPEN else None

    def answered(self) -> None:
        self.state = CircuitState.CLOSED
        self._silences = 0

    def silent(self, now: float) -> None:
        """Note that a request had no event in time."""
        self._silences += 1
        if self.state is CircuitState.HALF_OPEN or self._silences >= TRIPS_AFTER:
            self.state = CircuitState.OPEN
            self._opened_at = now

    def rested(self, now: float) -> None:
        if self.retry_at is not None and now >= self.retry_at:
            self.state = CircuitState.HALF_OPEN
