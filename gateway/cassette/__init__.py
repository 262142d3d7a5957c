"""Cassettes: what an upstream answered, kept as text and played back.

    client -> Recorder -> upstream          client -> Player
                 |                                      ^
                 v                                      |
              Cassette (a folder, one file an exchange) '

`Recorder` and `Player` are ASGI applications; `listening` puts one behind a socket of the running loop.
"""

from gateway.cassette.cassette import Cassette, CassetteError
from gateway.cassette.exchange import Ending, Exchange, Read, RecordedResponse
from gateway.cassette.listening import listening
from gateway.cassette.player import AT_ONCE, Miss, Player
from gateway.cassette.recorder import Recorder, UpstreamFault
from gateway.cassette.request import RecordedRequest

__all__ = [
    "AT_ONCE",
    "Cassette",
    "CassetteError",
    "Ending",
    "Exchange",
    "Miss",
    "Player",
    "Read",
    "RecordedRequest",
    "RecordedResponse",
    "Recorder",
    "UpstreamFault",
    "listening",
]
