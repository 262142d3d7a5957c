"""The llama-servers that the gateway runs itself: one for every backend with a command.

To the rest of the gateway they are backends with a URL and a key: `located` and `environ` say which. They are
stopped together, around everything that uses them, and started together but for those that are loaded on
demand: what starts and stops meanwhile is `loader.py`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Self

from slotgate.gateway.backends.monitor import Monitor
from slotgate.gateway.backends.state import BackendState
from slotgate.gateway.processes.command import LlamaCommand
from slotgate.gateway.processes.state import State
from slotgate.gateway.processes.supervisor import LlamaProcess
from slotgate.gateway.settings import BackendSettings, Settings, isolating

__all__ = ["ManagedProcesses"]


class ManagedProcesses:
    """`async with children:` starts them, without waiting until they are ready, and stops them."""

    def __init__(self, processes: Iterable[LlamaProcess], on_demand: Iterable[str] = ()) -> None:
        """Those named in `on_demand` are not started here."""
        self._on_demand = frozenset(on_demand)
        self._processes = {process.name: process for process in processes}

    def __repr__(self) -> str:
        return f"<ManagedProcesses {list(self._processes.values())!r}>"

    def __iter__(self) -> Iterator[LlamaProcess]:
        return iter(self._processes.values())

    @classmethod
    def of(cls, settings: Settings, environ: Mapping[str, str]) -> Self:
        """One process for every backend with a command."""
        own = [backend for backend in settings.backends if backend.command]
        processes = [LlamaProcess(_command(backend, settings), environ) for backend in own]
        return cls(processes, (backend.name for backend in own if backend.load == "demand"))

    async def __aenter__(self) -> Self:
        for process in self:
            if process.name not in self._on_demand:
                process.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.gather(*(process.stop() for process in self))

    def located(self, settings: Settings) -> Settings:
        """The settings with a URL and the name of a key in the place of each command."""
        backends = tuple(self._located(backend) for backend in settings.backends)
        return settings.model_copy(update={"backends": backends})

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """`environ` and the keys of our processes, under the names that `located` gives them."""
        return dict(environ) | {_variable(process.name): process.api_key for process in self}

    def follow(self, monitors: Mapping[str, Monitor]) -> None:
        """From now on each backend knows at once how its process fares, and where it is."""
        for process in self:
            process.on_change = partial(_tell, monitors[process.name])
            process.on_change(process)

    def _located(self, backend: BackendSettings) -> BackendSettings:
        process = self._processes.get(backend.name)
        if process is None:
            return backend
        place = {"command": (), "url": process.url, "api_key_env": _variable(backend.name)}
        return backend.model_copy(update=place)


_SEEN = {
    State.STARTING: BackendState.STARTING,
    State.LOADING: BackendState.LOADING,
    State.BACKOFF: BackendState.STARTING,
    State.GIVEN_UP: BackendState.FAILED,
    State.STOPPED: BackendState.STOPPED,
}
"""How a process fares, for those who use it. A READY one is asked; a STOPPING one was held before."""


def _tell(monitor: Monitor, process: LlamaProcess) -> None:
    if process.state is State.READY:
        monitor.process_ready(process.url, process.kv_unified)
    elif process.state in _SEEN:
        given_up = process.state is State.GIVEN_UP
        failure = process.failure if process.state is not State.STOPPED else None
        why = f"{'given up: ' if given_up else ''}{failure.reason}" if failure else ""
        monitor.process_is(_SEEN[process.state], why, given_up=given_up)


def _command(backend: BackendSettings, settings: Settings) -> LlamaCommand:
    names = {model.name: model.upstream_name or model.name for model in settings.models}
    aliases = [names.get(model, model) for model in backend.models]
    return LlamaCommand(
        name=backend.name,
        command=backend.command,
        alias=",".join(aliases)
        or backend.name,  # never the path of the file, which is llama-server's default
        start_timeout_s=backend.start_timeout_s,
        shared=len(settings.tenants) > 1,
        erasable=backend.name in isolating(settings),
    )


def _variable(name: str) -> str:
    """Not an environment variable of anybody's: a name with a space cannot be set in a shell."""
    return f"key of {name}"
