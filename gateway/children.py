"""The llama-servers that the gateway runs itself: one for every backend with a command.

To the rest of the gateway they are backends with a URL and a key: `located` and `environ` say which. They are
started and stopped together, around everything that uses them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Self

from gateway.llama_command import LlamaCommand
from gateway.llama_process import LlamaProcess
from gateway.llama_state import State
from gateway.monitor import Monitor
from gateway.settings import Backend, Settings

__all__ = ["Children"]


class Children:
    """`async with children:` starts them, without waiting until they are ready, and stops them."""

    def __init__(self, processes: Iterable[LlamaProcess]) -> None:
        self._processes = {process.name: process for process in processes}

    def __repr__(self) -> str:
        return f"<Children {list(self._processes.values())!r}>"

    def __iter__(self) -> Iterator[LlamaProcess]:
        return iter(self._processes.values())

    @classmethod
    def of(cls, settings: Settings, environ: Mapping[str, str]) -> Self:
        """One process for every backend with a command."""
        own = (backend for backend in settings.backends if backend.command)
        return cls(LlamaProcess(_command(backend, settings), environ) for backend in own)

    async def __aenter__(self) -> Self:
        for process in self:
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

    def _located(self, backend: Backend) -> Backend:
        process = self._processes.get(backend.name)
        if process is None:
            return backend
        place = {"command": (), "url": process.url, "api_key_env": _variable(backend.name)}
        return backend.model_copy(update=place)


def _tell(monitor: Monitor, process: LlamaProcess) -> None:
    if process.state is State.READY:
        monitor.process_ready(process.url)
    elif process.state in {State.BACKOFF, State.GIVEN_UP} and process.failure:
        given_up = "given up: " if process.state is State.GIVEN_UP else ""
        monitor.process_ended(f"{given_up}{process.failure.reason}")


def _command(backend: Backend, settings: Settings) -> LlamaCommand:
    names = {model.name: model.upstream_name or model.name for model in settings.models}
    aliases = [names.get(model, model) for model in backend.models]
    return LlamaCommand(
        name=backend.name,
        command=backend.command,
        alias=",".join(aliases)
        or backend.name,  # never the path of the file, which is llama-server's default
        start_timeout_s=backend.start_timeout_s,
        shared=len(settings.tenants) > 1,
    )


def _variable(name: str) -> str:
    """Not an environment variable of anybody's: a name with a space cannot be set in a shell."""
    return f"key of {name}"
