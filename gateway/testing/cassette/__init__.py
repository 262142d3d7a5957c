"""Cassettes: the answers of an upstream, kept as text files and played back.

    client -> Recorder -> upstream          client -> Player
                 |                                      ^
                 v                                      |
              Cassette (a folder, one file an exchange) '

`Recorder` and `Player` are ASGI applications. `listening` serves one of them in the running event loop.
"""

from __future__ import annotations

from slotgate.gateway.testing.cassette.cassette import Cassette, CassetteError
from slotgate.gateway.testing.cassette.exchange import (
    Ending,
    RecordedExchange,
    RecordedRead,
    RecordedResponse,
)
from slotgate.gateway.testing.cassette.listening import listening
from slotgate.gateway.testing.cassette.player import AT_ONCE, Miss, Player
from slotgate.gateway.testing.cassette.recorder import Recorder, UpstreamFault
from slotgate.gateway.testing.cassette.request import RecordedRequest

__all__ = [
    "AT_ONCE",
    "Cassette",
    "CassetteError",
    "Ending",
    "Miss",
    "Player",
    "RecordedExchange",
    "RecordedRead",
    "RecordedRequest",
    "RecordedResponse",
    "Recorder",
    "UpstreamFault",
    "listening",
]
