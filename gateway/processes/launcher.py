"""One llama-server process: launched on a port, waited for, ended.

A `Launcher` makes one `Launched` after another, all with the same key, which travels by environment only, and
on the same port as long as that can be had: then whoever talks to the server finds the next one there.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

from slotgate.gateway.processes.child import Child
from slotgate.gateway.processes.command import CACHE_RAM, LlamaCommand
from slotgate.gateway.processes.environment import child_environment
from slotgate.gateway.processes.flags import knows_option
from slotgate.gateway.processes.output import ChildOutput
from slotgate.gateway.processes.ports import LOOPBACK, cannot_listen, free_port
from slotgate.gateway.processes.probe import Answer, Probe

_PROBE_INTERVAL_S: Final = 0.1


class Launched:
    """A process that runs, or ran. Whoever has one ends its `child`."""

    def __init__(self, child: Child, port: int, api_key: str, output: ChildOutput) -> None:
        self.child = child
        self.url = _url(port)
        self.output = output
        self._api_key = api_key

    def __repr__(self) -> str:
        return f"<Launched {self.url} {self.child!r}>"

    async def until_ready(self, timeout_s: float) -> str | None:
        """None once it is ready and known to be ours; else why it will not be."""
        answer = Answer.SILENT
        deadline = time.monotonic() + timeout_s
        async with Probe(self.url, self._api_key) as probe:
            while time.monotonic() < deadline:
                if await self.child.is_over_within(_PROBE_INTERVAL_S):
                    return str(self.child.exit)
                answer = await probe.ask()
                if answer is Answer.READY:
                    return None
                if answer.is_a_stranger:
                    return f"{self.url} {answer.value}"
        return f"not ready after {timeout_s:g} s: {self.url} {answer.value}"


class Launcher:
    """Launches `command`; what of `environ` may pass is decided by `child_environment`."""

    def __init__(
        self, command: LlamaCommand, environ: Mapping[str, str], pick_port: Callable[[], int] = free_port
    ) -> None:
        self.command = command
        self.api_key = secrets.token_urlsafe(32)
        self._environment = child_environment(environ, command.environment, self.api_key)
        self._pick_port = pick_port
        self._port = pick_port()
        self._knows_cache_ram: bool | None = None

    def __repr__(self) -> str:
        return f"<Launcher {self.command.name}>"

    @property
    def url(self) -> str:
        """Where the last process listened, or else the first one will."""
        return _url(self._port)

    async def launch(self, on_line: Callable[[str], None]) -> Launched:
        """Starts a process; each line it writes goes to `on_line`. Raises as `Child.start`."""
        cache = await self._may_limit_cache()
        port = self._next_port()
        output = ChildOutput(on_line, (self.api_key,))
        child = await Child.start(self.command.arguments(port, cache), self._environment, output)
        return Launched(child, port, self.api_key, output)

    def _next_port(self) -> int:
        """The last one, unless somebody has it now: a stranger, or whoever made our process fail to bind."""
        if cannot_listen(LOOPBACK, self._port) is not None:
            self._port = self._pick_port()
        return self._port

    async def _may_limit_cache(self) -> bool:
        """Asked of the program once."""
        if not self.command.limits_cache:
            return False
        if self._knows_cache_ram is None:
            self._knows_cache_ram = await knows_option(self.command.command, self._environment, CACHE_RAM)
        return self._knows_cache_ram


def _url(port: int) -> str:
    return f"http://{LOOPBACK}:{port}"
