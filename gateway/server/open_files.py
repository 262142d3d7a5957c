"""The limit of open files. Each connection is an open file to the kernel."""

from __future__ import annotations

import resource

import structlog

__all__ = ["allow_connections"]

_OTHERS = 128
"""Files besides: logs, listeners, probes, stores, and connections that are refused with an answer."""
log = structlog.stdlib.get_logger(__name__)


def allow_connections(count: int) -> None:
    """Raise the soft limit of this process so that `count` clients can be connected, each with an upstream.

    The usual soft limit of 1024 dates from programs that could not handle more. The hard limit is the
    administrator's and stays as it is. A warning is logged if it is too low.
    """
    needed = 2 * count + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        log.warning("too few open files are allowed", allowed=allowed, needed=needed, max_connections=count)
