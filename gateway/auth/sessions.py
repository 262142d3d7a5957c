"""Sessions of operators who signed in with a browser. Each has a random id and a fixed lifetime.

A session keeps the digest of the key that opened it, and ends when that key is no longer valid. Sessions are
kept in memory only, so a restart of the gateway ends them all. This module never awaits.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

__all__ = ["LIFETIME_S", "MOST_SESSIONS", "Session", "Sessions"]

LIFETIME_S: Final = 12 * 3600.0
"""Seconds from the sign-in. Use of the session does not extend it."""
MOST_SESSIONS: Final = 32
"""The number of sessions that may be open at a time. Another sign-in closes the oldest one."""
_ID_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Session:
    """A session that a sign-in has opened. Times are seconds of the clock that `Sessions` was given."""

    key_digest: bytes = field(repr=False)
    ends_at: float


class Sessions:
    """All open sessions, looked up by the digest of their id: the time of a look-up reveals nothing about the
    ids.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[bytes, Session] = {}
        """Digest of the id -> session, oldest first."""

    def __repr__(self) -> str:
        return f"<Sessions {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._open)

    def open(self, key_digest: bytes) -> str:
        """Open a session and return its id."""
        while len(self._open) >= MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        session_id = secrets.token_urlsafe(_ID_BYTES)
        self._open[_digest(session_id)] = Session(key_digest, self._clock() + LIFETIME_S)
        return session_id

    def find(self, session_id: str) -> Session | None:
        """Return the session with this id, or None if there is none or its time is over."""
        session = self._open.get(_digest(session_id))
        if session is not None and self._clock() >= session.ends_at:
            self.close(session_id)
            return None
        return session

    def close(self, session_id: str) -> None:
        """Close the session, if it is open."""
        self._open.pop(_digest(session_id), None)

    def keep(self, holds: Callable[[bytes], bool]) -> None:
        """Close the sessions whose key `holds` does not accept."""
        self._open = {name: session for name, session in self._open.items() if holds(session.key_digest)}


def _digest(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).digest()
