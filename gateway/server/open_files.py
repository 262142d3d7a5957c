"""The number of files a process may have open, which is what its connections are to the kernel."""

from __future__ import annotations

import resource

import structlog

__all__ = ["allow_connections"]

_OTHERS = 128
"""Logs, listeners, probes, stores, and the connections that are told that they are too many."""
log = structlog.stdlib.get_logger(__name__)


def allow_connections(count: int) -> None:
    """Raise this process's own limit so far that `count` clients can be connected, each with an upstream.

    The usual 1024 is a default from times of programs that could not take more; what an administrator has
    set as the hard limit stands, and too low a one is said.
    """
    needed = 2 * count + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        log.warning("too few open files are allowed", allowed=allowed, needed=needed, max_connections=count)
