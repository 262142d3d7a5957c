"""What to run as a llama-server, and the arguments we add to it.

Ours come last: llama-server lets the last of a repeated option win. Its key is not among them: it is in the
environment, where other users of the machine cannot read it.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from slotgate.gateway.processes.ports import LOOPBACK
from slotgate.gateway.settings.isolation import CACHE_OPTIONS

CACHE_RAM: Final = "--cache-ram"


@dataclass(frozen=True, slots=True)
class LlamaCommand:
    """One llama-server to run. `name` is the backend's name in logs and messages.

    `shared` says that several tenants use it: then no conversation may be kept in the prompt cache in main
    memory, from where it can come back in somebody else's context.
    """

    name: str
    command: tuple[str, ...]
    alias: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    start_timeout_s: float = 300.0
    shared: bool = False
    erasable: bool = False
    """Whether what is left in its slots must be erasable: llama-server allows that only where it may save
    slots as well. It is never asked to: the directory that it needs to be told of stays as it is."""

    def arguments(self, port: int, knows_cache_ram: bool) -> tuple[str, ...]:
        """The whole command line of a process that is to listen on `port`."""
        alias = () if self.alias is None else ("--alias", self.alias)
        cache = (CACHE_RAM, "0") if knows_cache_ram and self.limits_cache else ()
        erasing = ("--slot-save-path", tempfile.gettempdir()) if self.erasable else ()
        return (*self.command, "--host", LOOPBACK, "--port", str(port), *alias, *cache, *erasing)

    @property
    def limits_cache(self) -> bool:
        """Whether the prompt cache is ours to switch off: a setting in the command is respected."""
        return (self.shared or self.erasable) and not any(self._has(option) for option in CACHE_OPTIONS)

    def _has(self, option: str) -> bool:
        return any(word == option or word.startswith(f"{option}=") for word in self.command)
