"""The public names for tests: the scripted llama-server, cassettes, and an event loop on virtual time.

docs/testing.md and docs/cassettes.md explain them. The pytest fixtures need no import, because pytest loads
the plugin of the installed package.
"""

from __future__ import annotations

from slotgate.gateway.testing.cassette import (
    AT_ONCE,
    Cassette,
    CassetteError,
    Ending,
    Miss,
    Player,
    RecordedExchange,
    RecordedRead,
    RecordedRequest,
    RecordedResponse,
    Recorder,
    UpstreamFault,
    listening,
)
from slotgate.gateway.testing.fake import (
    FakeServer,
    Machine,
    Reply,
    Scene,
    ScriptError,
    read_script,
    scene_of,
)
from slotgate.gateway.testing.fake.net.virtual_time import run_virtual

__all__ = [
    "AT_ONCE",
    "Cassette",
    "CassetteError",
    "Ending",
    "FakeServer",
    "Machine",
    "Miss",
    "Player",
    "RecordedExchange",
    "RecordedRead",
    "RecordedRequest",
    "RecordedResponse",
    "Recorder",
    "Reply",
    "Scene",
    "ScriptError",
    "UpstreamFault",
    "listening",
    "read_script",
    "run_virtual",
    "scene_of",
]
