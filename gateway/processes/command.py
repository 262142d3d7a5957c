"""The command line and the environment of a llama-server that the gateway runs.

The gateway adds its own arguments at the end, because llama-server lets the last of a repeated option win.
The API key is in the environment and not among the arguments, where other users of the machine could read it.

The environment is an allow-list, never a copy. llama-server takes any option from `LLAMA_ARG_*` and its key
from `LLAMA_API_KEY`: inherited, they would contradict the command and lock the gateway out of its own child.
The gateway's secrets (`SLOTGATE_*`, tokens of model hubs, proxies with passwords) must not reach the child
either. What passes finds libraries, devices and caches, and sets the user's locale.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from slotgate.gateway.processes.ports import LOOPBACK
from slotgate.gateway.settings.isolation import CACHE_OPTIONS

__all__ = ["API_KEY", "CACHE_RAM", "LlamaCommand", "child_environment"]

API_KEY: Final = "LLAMA_API_KEY"
CACHE_RAM: Final = "--cache-ram"

_NAMES: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"}
    | {"DYLD_LIBRARY_PATH", "LLAMA_CACHE", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"}
)

_NVIDIA: Final = ("CUDA_", "NVIDIA_", "NCCL_")
_AMD: Final = ("HIP_", "HSA_", "ROCR_", "ROCM_", "AMD_", "GPU_")
_OTHER_DEVICES: Final = ("GGML_", "VK_", "MESA_", "SYCL_", "ONEAPI_", "ZE_", "MUSA_", "ASCEND_")
_THREAD_POOLS: Final = ("OMP_", "GOMP_", "KMP_", "OPENBLAS_")
_PREFIXES: Final = ("LC_", *_NVIDIA, *_AMD, *_OTHER_DEVICES, *_THREAD_POOLS)


@dataclass(frozen=True, slots=True)
class LlamaCommand:
    """The command of a llama-server. `name` is the backend's name in logs and messages.

    `shared` says that several tenants use it. Then no conversation may stay in the prompt cache in main
    memory, because it could come back in the context of another tenant.
    """

    name: str
    command: tuple[str, ...]
    alias: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    start_timeout_s: float = 300.0
    shared: bool = False
    erasable: bool = False
    """True if the gateway erases its slots. llama-server allows that only with --slot-save-path. The gateway
    never asks it to save a slot, so nothing is written to that directory."""

    def arguments(self, port: int, knows_cache_ram: bool) -> tuple[str, ...]:
        """Return the whole command line of a process that listens on `port`."""
        alias = () if self.alias is None else ("--alias", self.alias)
        cache = (CACHE_RAM, "0") if knows_cache_ram and self.limits_cache else ()
        erasing = ("--slot-save-path", tempfile.gettempdir()) if self.erasable else ()
        return (*self.command, "--host", LOOPBACK, "--port", str(port), *alias, *cache, *erasing)

    @property
    def limits_cache(self) -> bool:
        """Return True if the gateway switches the prompt cache off. A setting in the command is respected."""
        return (self.shared or self.erasable) and not any(self._has(option) for option in CACHE_OPTIONS)

    def _has(self, option: str) -> bool:
        return any(word == option or word.startswith(f"{option}=") for word in self.command)


def child_environment(
    environ: Mapping[str, str], additions: Mapping[str, str], api_key: str
) -> dict[str, str]:
    """Return what may pass of `environ`, then `additions`, then the key that the child must ask for."""
    passed = {name: value for name, value in environ.items() if _passes(name)}
    return passed | dict(additions) | {API_KEY: api_key}


def _passes(name: str) -> bool:
    return name in _NAMES or name.startswith(_PREFIXES)
