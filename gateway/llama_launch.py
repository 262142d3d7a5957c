"""One llama-server process: launched on an address of its own, waited for, ended.

A `Launcher` makes one `Launched` after another, all with the same key, which travels by environment only.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

from gateway.child_environment import child_environment
from gateway.child_output import ChildOutput
from gateway.child_process import Child
from gateway.llama_address import Address, free_port
from gateway.llama_command import CACHE_RAM, LlamaCommand
from gateway.llama_flags import knows_option
from gateway.llama_probe import Answer, Probe

_PROBE_INTERVAL_S: Final = 0.1


class Launched:
    """A process that runs, or ran. Whoever has one calls `end()`."""

    def __init__(self, child: Child, address: Address, api_key: str, output: ChildOutput) -> None:
        self.child = child
        self.address = address
        self.output = output
        self._api_key = api_key

    def __repr__(self) -> str:
        return f"<Launched {self.address.url} {self.child!r}>"

    async def until_ready(self, timeout_s: float) -> str | None:
        """None once it is ready and known to be ours; else why it will not be."""
        answer = Answer.SILENT
        deadline = time.monotonic() + timeout_s
        async with Probe(self.address, self._api_key) as probe:
            while time.monotonic() < deadline:
                if await self.child.is_over_within(_PROBE_INTERVAL_S):
                    return str(self.child.exit)
                answer = await probe.ask()
                if answer is Answer.READY:
                    return None
                if answer.is_a_stranger:
                    return f"{self.address.url} {answer.value}"
        return f"not ready after {timeout_s:g} s: {self.address.url} {answer.value}"

    async def end(self, grace_s: float) -> None:
        """Ends it if it runs, and clears its address."""
        try:
            await self.child.end(grace_s)
        finally:
            self.address.clear()


class Launcher:
    """Launches `command`; what of `environ` may pass is decided by `child_environment`."""

    def __init__(
        self, command: LlamaCommand, environ: Mapping[str, str], pick_port: Callable[[], int] = free_port
    ) -> None:
        self.command = command
        self.api_key = secrets.token_urlsafe(32)
        self._environment = child_environment(environ, command.environment, self.api_key)
        self._pick_port = pick_port
        self._knows_cache_ram: bool | None = None

    def __repr__(self) -> str:
        return f"<Launcher {self.command.name}>"

    async def launch(self, on_line: Callable[[str], None]) -> Launched:
        """Starts a process; each line it writes goes to `on_line`. Raises as `Child.start`."""
        cache = await self._may_limit_cache()
        address = self.command.address(self._pick_port)
        address.clear()
        output = ChildOutput(on_line, (self.api_key,))
        arguments = self.command.arguments(address, cache)
        child = await Child.start(arguments, self._environment, output)
        return Launched(child, address, self.api_key, output)

    async def _may_limit_cache(self) -> bool:
        """Asked of the program once."""
        if not self.command.limits_cache:
            return False
        if self._knows_cache_ram is None:
            self._knows_cache_ram = await knows_option(self.command.command, self._environment, CACHE_RAM)
        return self._knows_cache_ram
