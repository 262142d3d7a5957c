"""What stands behind the gateway in a CI run: a scripted llama-server, a real one, or one that runs already.

A recording is one too (`recording.py`). A new kind is one more class with these few members.
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
    """`async with stand_in:` it is there inside, and nothing of it after."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def backend(self) -> Table:
        """It as a `[[backend]]` of the configuration."""
        ...

    def meant_to_fail(self, request_id: str) -> bool:
        """Whether a request failed because this is what was asked for."""
        ...

    def unmatched(self) -> list[str]:
        """Requests that it was not told how to answer, in words."""
        ...


class ScriptedServer:
    """In this process: there is nothing to be left behind."""

    def __init__(self, scene: Scene, on_reset: Changed) -> None:
        """`on_reset` has the gateway go on with another server, under further settings."""
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
        """After a scripted crash any failure may be its consequence."""
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
    """A llama-server of ours, found as `slotgate run` finds one; it takes llama-server's own time to load."""

    def __init__(self, model: Path, environ: Mapping[str, str]) -> None:
        """Raises `NotFoundError`."""
        self._plan = prepare(
            RunOptions(model, "127.0.0.1", 0, None, None, None), environ, Path.cwd(), Installed()
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Its process is stopped with the gateway."""

    @property
    def backend(self) -> Table:
        return {"name": "local", "command": list(self._plan.command.command), "models": [self._plan.alias]}

    def meant_to_fail(self, request_id: str) -> bool:
        return False

    def unmatched(self) -> list[str]:
        return []


class RunningServer:
    """Somebody else's; which models it has is asked of it."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """It stays."""

    @property
    def backend(self) -> Table:
        return {"name": "upstream", "url": self._url}

    def meant_to_fail(self, request_id: str) -> bool:
        return False

    def unmatched(self) -> list[str]:
        return []
