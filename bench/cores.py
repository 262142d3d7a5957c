"""Assign cores: one to the gateway, another to load and upstream together."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cores", "choose"]

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/{}"


@dataclass(frozen=True, slots=True)
class Cores:
    gateway: int
    load: int

    def __str__(self) -> str:
        if self.gateway == self.load:
            return f"everything on core {self.gateway}, the only one: no figure here is worth much"
        return f"gateway on core {self.gateway}, load and upstream on core {self.load}"


def choose(allowed: set[int] | None = None) -> Cores:
    """Choose two cores that this process may use, on different physical cores if that is known."""
    first, *others = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    if not others:
        return Cores(first, first)
    apart = [core for core in others if _physical(core) != _physical(first)]
    return Cores(first, (apart or others)[0])


def _physical(core: int) -> tuple[str, str]:
    names = ("physical_package_id", "core_id")
    try:
        package, number = (Path(_TOPOLOGY.format(core, name)).read_text().strip() for name in names)
    except OSError:
        return "?", str(core)
    return package, number
