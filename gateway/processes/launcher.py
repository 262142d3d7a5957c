"""Launches llama-server processes, one after another, and waits until each is ready.

All processes of a `Launcher` have the same API key, which they get by the environment. They also have the
same port as long as it is free, so that the gateway finds the next process at the address of the last one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from slotgate.gateway.processes.child import Child
from slotgate.gateway.processes.command import CACHE_RAM, LlamaCommand, child_environment
from slotgate.gateway.processes.output import ChildOutput
from slotgate.gateway.processes.ports import LOOPBACK, cannot_listen, free_port
from slotgate.gateway.processes.readiness_probe import ProbeAnswer, ReadinessProbe

__all__ = ["LaunchedProcess", "Launcher", "knows_option"]

_HELP_TIMEOUT_S: Final = 10.0
_PROBE_INTERVAL_S: Final = 0.1


class LaunchedProcess:
    """A process that runs or has run. Its holder must end `child`."""

    def __init__(self, child: Child, port: int, api_key: str, output: ChildOutput) -> None:
        self.child = child
        self.url = _url(port)
        self.output = output
        self._api_key = api_key

    def __repr__(self) -> str:
        return f"<LaunchedProcess {self.url} {self.child!r}>"

    async def until_ready(self, timeout_s: float) -> str | None:
        """Return None once the process is ready and known to be ours, or the reason why it is not."""
        answer = ProbeAnswer.SILENT
        deadline = time.monotonic() + timeout_s
        async with ReadinessProbe(self.url, self._api_key) as probe:
            while time.monotonic() < deadline:
                if await self.child.is_over_within(_PROBE_INTERVAL_S):
                    return str(self.child.exit)
                answer = await probe.ask()
                if answer is ProbeAnswer.READY:
                    return None
                if answer.is_a_stranger:
                    return f"{self.url} {answer.value}"
        return f"not ready after {timeout_s:g} s: {self.url} {answer.value}"


class Launcher:
    """Launches `command`. `child_environment` decides what passes of `environ`."""

    def __init__(
        self, command: LlamaCommand, environ: Mapping[str, str], pick_port: Callable[[], int] = free_port
    ) -> None:
        self.command = command
        self.api_key = secrets.token_urlsafe(32)
        self._environ = environ
        self._pick_port = pick_port
        self._port = pick_port()
        self._knows_cache_ram: bool | None = None

    def __repr__(self) -> str:
        return f"<Launcher {self.command.name}>"

    @property
    def url(self) -> str:
        """The address where the last process listened, or where the first one will listen."""
        return _url(self._port)

    def change_command(self, command: LlamaCommand) -> None:
        """Launch this command from now on. It may be another program, whose options are not known yet."""
        if command.command != self.command.command:
            self._knows_cache_ram = None
        self.command = command

    async def launch(self, on_line: Callable[[str], None]) -> LaunchedProcess:
        """Start a process and call `on_line` with each line of its output. Raises OSError."""
        cache = await self._may_limit_cache()
        port = self._next_port()
        output = ChildOutput(on_line, (self.api_key,))
        child = await Child.start(self.command.arguments(port, cache), self._environment, output)
        return LaunchedProcess(child, port, self.api_key, output)

    @property
    def _environment(self) -> dict[str, str]:
        return child_environment(self._environ, self.command.environment, self.api_key)

    def _next_port(self) -> int:
        """Return the last port, or another one if another program listens on the last port now."""
        if cannot_listen(LOOPBACK, self._port) is not None:
            self._port = self._pick_port()
        return self._port

    async def _may_limit_cache(self) -> bool:
        """Return True if --cache-ram can be given. The program is asked only once."""
        if not self.command.limits_cache:
            return False
        if self._knows_cache_ram is None:
            self._knows_cache_ram = await knows_option(self.command.command, self._environment, CACHE_RAM)
        return self._knows_cache_ram


async def knows_option(command: Sequence[str], environment: Mapping[str, str], option: str) -> bool:
    """Return True if the output of `command --help` names `option`. Raises OSError as `Child.start` does.

    llama-server exits at once when it gets an option that it does not know.
    """
    lines: list[str] = []
    child = await Child.start((*command, "--help"), environment, ChildOutput(lines.append))
    try:
        await child.is_over_within(_HELP_TIMEOUT_S)
    finally:
        await child.end(grace_s=0.0)
    return any(option in line.replace(",", " ").split() for line in lines)


def _url(port: int) -> str:
    return f"http://{LOOPBACK}:{port}"
