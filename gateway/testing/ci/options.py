"""What `slotgate ci` was told to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from pathlib import Path

__all__ = ["CiOptions"]


@dataclass(frozen=True, slots=True)
class CiOptions:
    script: Path | None = None
    """For the scripted llama-server, which stands in where nothing else is named."""
    replay: Path | None = None
    """The folder of a recording instead."""
    speed: float = inf
    """Of a recording; 1 is as it was."""
    model: Path | None = None
    """A real llama-server with this model instead."""
    upstream: str | None = None
    """A llama-server that runs already instead."""
    host: str = "127.0.0.1"
    port: int = 0
    origins: tuple[str, ...] = ()
    ready: Path | None = None
    junit: Path | None = None
    start_s: float = 120.0
    """What stands behind the gateway has to be ready by then."""
    max_s: float = 3600.0
    expected: frozenset[str] = frozenset()
    """Error codes of requests that may fail."""
    with_parent: bool = False
    """End when the process that started us does."""
    control: bool = False
    """Let the test that started us lead the scripted server."""
    verbose: bool = False
    command: tuple[str, ...] = ()
    key: str | None = field(default=None, repr=False)
