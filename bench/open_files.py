"""Raise the limit of open files: a stream through a gateway needs several of them."""

from __future__ import annotations

import contextlib
import resource

__all__ = ["allow_files"]

FILES = 32768


def allow_files() -> None:
    """Raise the limit to what a benchmark needs, or to what the machine allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
