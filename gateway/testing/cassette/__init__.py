"""Cassettes: what an upstream answered, kept as text and played back.

    client -> Recorder -> upstream          client -> Player
                 |                                      ^
                 v                                      |
              Cassette (a folder, one file an exchange) '

`Recorder` and `Player` are ASGI applications; `listening` puts one behind a socket of the running loop.
"""

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
