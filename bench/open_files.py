"""How many files this process and its children may open: a stream through a gateway takes several."""

from __future__ import annotations

import contextlib
import resource

__all__ = ["allow_files"]

FILES = 32768


def allow_files() -> None:
    """As many as a benchmark needs, or as the machine allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
