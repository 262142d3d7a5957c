"""The options of `slotgate ci`."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from pathlib import Path

__all__ = ["CiOptions"]


@dataclass(frozen=True, slots=True)
class CiOptions:
    """The options of one run. At most one of `replay`, `model` and `upstream` is given."""

    script: Path | None = None
    """The script of the scripted llama-server, which is the default stand-in."""
    replay: Path | None = None
    """The folder of a recording, used in place of the scripted llama-server."""
    speed: float = inf
    """The speed of a recording; 1 plays at the recorded times."""
    model: Path | None = None
    """A model for a real llama-server, used in place of the scripted one."""
    upstream: str | None = None
    """The URL of a running llama-server, used in place of the scripted one."""
    host: str = "127.0.0.1"
    port: int = 0
    origins: tuple[str, ...] = ()
    ready: Path | None = None
    junit: Path | None = None
    start_s: float = 120.0
    """Seconds after which a stand-in that is not ready ends the run."""
    max_s: float = 3600.0
    expected: frozenset[str] = frozenset()
    """Error codes that do not count as failures."""
    with_parent: bool = False
    """End when the parent process ends."""
    control: bool = False
    """Serve the interface by which a test controls the scripted llama-server."""
    verbose: bool = False
    command: tuple[str, ...] = ()
    key: str | None = field(default=None, repr=False)
