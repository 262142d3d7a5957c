"""A scripted llama-server, for tests and for CI without a GPU.

It has llama-server's endpoints, byte shapes, slots and bad habits, speaks what a script says, and is the same
from run to run. `server.py` has the sockets, `llama.py` what is behind them, `script.py` reads scripts.
"""

from slotgate.gateway.testing.fake.script.reader import ScriptError, read_script, scene_of
from slotgate.gateway.testing.fake.script.scene import Machine, Reply, Scene
from slotgate.gateway.testing.fake.server import FakeServer

__all__ = ["FakeServer", "Machine", "Reply", "Scene", "ScriptError", "read_script", "scene_of"]
