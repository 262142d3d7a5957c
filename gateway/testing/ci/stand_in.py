"""The stand-ins behind the gateway of a CI run: a scripted llama-server, a real one, or a running one.

`recording.py` has one more, which plays a recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from slotgate.gateway.testing.ci.scripted_control import Changed, ScriptedControl
from slotgate.gateway.testing.fake import FakeServer, Scene
from slotgate.gateway.tools.run.packages import Installed
from slotgate.gateway.tools.run.plan import RunOptions, prepare

__all__ = ["RealModel", "RunningServer", "ScriptedServer", "StandIn"]

Table = dict[str, Any]


class StandIn(Protocol):
    """The llama-server of a CI run, for use as `async with stand_in:`. It runs inside the block."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def backend(self) -> Table:
        """The `[[backend]]` table of the configuration for this stand-in."""
        ...

    def meant_to_fail(self, request_id: str) -> bool:
        """Return True if the request was meant to fail, by its id."""
        ...

    def unmatched(self) -> list[str]:
        """Return descriptions of the requests that no reply or recording matched."""
        ...


class ScriptedServer:
    """A scripted llama-server in this process."""

    def __init__(self, scene: Scene, on_reset: Changed) -> None:
        """`on_reset` makes the gateway use another server and the settings that it is given."""
        self._scene = scene
        self._on_reset = on_reset
        self.actions: ScriptedControl | None = None

    async def __aenter__(self) -> Self:
        self.actions = ScriptedControl(self._scene, self._on_reset)
        await self._server.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.actions is not None
        await self.actions.close()

    @property
    def backend(self) -> Table:
        assert self.actions is not None
        if self.actions.recording is not None:
            return self.actions.recording.backend
        server = self._server
        return {"name": "fake", "url": server.url, "models": list(server.llama.scene.models)}

    def meant_to_fail(self, request_id: str) -> bool:
        """Return True if the script made the request fail. A scripted crash may explain any failure."""
        assert self.actions is not None
        llama = self._server.llama
        return llama.crashes > 0 or request_id in llama.meant_to_fail | self.actions.meant_to_fail

    def unmatched(self) -> list[str]:
        assert self.actions is not None
        return [*self.actions.unmatched, *self._server.llama.unmatched]

    @property
    def _server(self) -> FakeServer:
        assert self.actions is not None
        return self.actions.server


class RealModel:
    """A real llama-server with a model. The program is found as `slotgate run` finds it."""

    def __init__(self, model: Path, environ: Mapping[str, str]) -> None:
        """Raises `NotFoundError`."""
        self._plan = prepare(
            RunOptions(model, "127.0.0.1", 0, None, None, None), environ, Path.cwd(), Installed()
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: the gateway stops the process."""

    @property
    def backend(self) -> Table:
        return {"name": "local", "command": list(self._plan.command.command), "models": [self._plan.alias]}

    def meant_to_fail(self, request_id: str) -> bool:
        return False

    def unmatched(self) -> list[str]:
        return []


class RunningServer:
    """A llama-server that runs already. The gateway asks it for its models."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: the server keeps running."""

    @property
    def backend(self) -> Table:
        return {"name": "upstream", "url": self._url}

    def meant_to_fail(self, request_id: str) -> bool:
        return False

    def unmatched(self) -> list[str]:
        return []
