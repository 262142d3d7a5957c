"""A scripted llama-server, for tests and for CI without a GPU.

It has llama-server's endpoints, byte shapes, slots and bad habits. It says what a script tells it to say,
with the same bytes in every run.

    server.py    listening, loading, crashing, closing
    llama.py     one request, from its bytes to its answer
    net/         sockets, HTTP framing, and a network and clock in memory
    script/      the values of a script, its reader, and the tokens that it makes an answer of
    model/       slots, the shared cache, and the generation of one choice
    protocols/   the endpoints: reading requests and formatting answers

Nothing here imports anything of slotgate outside this package.
"""

from __future__ import annotations

from slotgate.gateway.testing.fake.script.reader import ScriptError, read_script, scene_of
from slotgate.gateway.testing.fake.script.scene import Machine, Reply, Scene
from slotgate.gateway.testing.fake.server import FakeServer

__all__ = ["FakeServer", "Machine", "Reply", "Scene", "ScriptError", "read_script", "scene_of"]
