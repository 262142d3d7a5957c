"""The llama-servers that the gateway runs: one for each backend with a command.

To the rest of the gateway they are backends with a URL and a key, which `located` and `environ` supply. At
the beginning all are started except those that are loaded on demand. At the end all are stopped together,
when nothing uses them any more. In between, `loader.py` loads and unloads them, and each `LlamaProcess`
starts its program again after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Self

from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.fleet import loads_on_request
from slotgate.gateway.processes.command import LlamaCommand
from slotgate.gateway.processes.llama_process import LlamaProcess
from slotgate.gateway.processes.state import ProcessState
from slotgate.gateway.settings import BackendSettings, Settings, isolating

__all__ = ["ManagedProcesses"]


class ManagedProcesses:
    """`async with processes:` starts them, without waiting until they are ready, and stops them."""

    def __init__(
        self,
        processes: Iterable[LlamaProcess],
        on_demand: Iterable[str] = (),
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """The processes named in `on_demand` are not started by `async with`.

        `environ` is the environment of processes that `adjust` adds.
        """
        self._on_demand = frozenset(on_demand)
        self._processes = {process.name: process for process in processes}
        self._environ = environ

    def __repr__(self) -> str:
        return f"<ManagedProcesses {list(self._processes.values())!r}>"

    def __iter__(self) -> Iterator[LlamaProcess]:
        return iter(self._processes.values())

    @classmethod
    def of(cls, settings: Settings, environ: Mapping[str, str]) -> Self:
        """Make one process for each backend with a command."""
        own = [backend for backend in settings.backends if backend.command]
        processes = [_process(backend, settings, environ) for backend in own]
        return cls(processes, (backend.name for backend in own if backend.load == "demand"), environ)

    def __getitem__(self, name: str) -> LlamaProcess:
        return self._processes[name]

    def adjust(self, settings: Settings) -> list[LlamaProcess]:
        """Give each process its command for the next load. Return the processes of new backends.

        They are not started.
        """
        added = []
        for backend in settings.backends:
            process = self._processes.get(backend.name)
            if process is not None and backend.command:
                process.change_command(
                    _command(backend, settings), waits_for_requests=loads_on_request(backend)
                )
            elif backend.command:
                added.append(_process(backend, settings, self._environ))
        self._processes |= {process.name: process for process in added}
        return added

    async def __aenter__(self) -> Self:
        for process in self:
            if process.name not in self._on_demand:
                process.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.gather(*(process.stop() for process in self))

    def located(self, settings: Settings) -> Settings:
        """Return the settings with a URL and the name of a key in the place of each command."""
        backends = tuple(self.locate(backend) for backend in settings.backends)
        return settings.model_copy(update={"backends": backends})

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return `environ` and the keys of the processes, under the names that `located` gives them."""
        return dict(environ) | {_variable(process.name): process.api_key for process in self}

    def report_to(self, backends: Mapping[str, Backend], names: Iterable[str] | None = None) -> None:
        """Tell each backend the state of its process, now and after every change. `names`: only these."""
        for process in self if names is None else [self._processes[name] for name in names]:
            report = partial(_report, backends[process.name])
            process.on_change.append(report)
            report(process)

    def locate(self, backend: BackendSettings) -> BackendSettings:
        """Return a backend with a URL and the name of a key in the place of its command."""
        process = self._processes.get(backend.name)
        if process is None:
            return backend
        place = {"command": (), "url": process.url, "api_key_env": _variable(backend.name)}
        return backend.model_copy(update=place)


def _report(backend: Backend, process: LlamaProcess) -> None:
    """Tell a backend the state of its process. The reason of a failure stays until it is ready again."""
    failure = process.failure.reason if process.failure else ""
    if failure and process.state is ProcessState.GIVEN_UP:
        failure = f"given up: {failure}"
    elif failure and process.state in (ProcessState.STOPPING, ProcessState.STOPPED):
        failure = f"failed when it was loaded last: {failure}"
    backend.process_changed(process.state, url=process.url, failure=failure, kv_unified=process.kv_unified)


def _process(backend: BackendSettings, settings: Settings, environ: Mapping[str, str]) -> LlamaProcess:
    command = _command(backend, settings)
    return LlamaProcess(command, environ, waits_for_requests=loads_on_request(backend))


def _command(backend: BackendSettings, settings: Settings) -> LlamaCommand:
    names = {model.name: model.upstream_name or model.name for model in settings.models}
    aliases = [names.get(model, model) for model in backend.models]
    return LlamaCommand(
        name=backend.name,
        command=backend.command,
        # llama-server's own default is the path of the model's file, which clients must not see.
        alias=",".join(aliases) or backend.name,
        start_timeout_s=backend.start_timeout_s,
        shared=len(settings.tenants) > 1,
        erasable=backend.name in isolating(settings),
    )


def _variable(name: str) -> str:
    """Return a name that no real environment variable has: a name with a space cannot be set in a shell."""
    return f"key of {name}"
