"""Sessions of operators who signed in with a browser: random ids, few at a time, each with an end.

A session remembers by which key it was opened, as a digest: it ends with that key. Nothing here is written
down, so a restart of the gateway ends them all. This module never awaits.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

__all__ = ["LIFETIME_S", "MOST_SESSIONS", "Session", "Sessions"]

LIFETIME_S: Final = 12 * 3600.0
"""From the sign-in, however busy the session is."""
MOST_SESSIONS: Final = 32
"""At once; one more ends the oldest."""
_ID_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Session:
    key_digest: bytes = field(repr=False)
    ends_at: float


class Sessions:
    """By the digest of their id: how long a look-up takes says nothing about the ids that exist."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[bytes, Session] = {}
        """In the order in which they were opened, which is that in which they end."""

    def __repr__(self) -> str:
        return f"<Sessions {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._open)

    def open(self, key_digest: bytes) -> str:
        """Returns the id of a new one."""
        while len(self._open) >= MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        session_id = secrets.token_urlsafe(_ID_BYTES)
        self._open[_digest(session_id)] = Session(key_digest, self._clock() + LIFETIME_S)
        return session_id

    def find(self, session_id: str) -> Session | None:
        """The session of this id, while it lasts."""
        session = self._open.get(_digest(session_id))
        if session is not None and self._clock() >= session.ends_at:
            self.close(session_id)
            return None
        return session

    def close(self, session_id: str) -> None:
        """Nothing happens where there is none."""
        self._open.pop(_digest(session_id), None)

    def keep(self, holds: Callable[[bytes], bool]) -> None:
        """End those whose key is no longer good."""
        self._open = {name: session for name, session in self._open.items() if holds(session.key_digest)}


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).digest()
