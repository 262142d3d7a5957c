"""The limit of open files. Each connection is an open file to the kernel."""

from __future__ import annotations

import resource

import structlog

__all__ = ["allow_connections"]

_OTHERS = 128
"""Files besides: logs, listeners, probes, stores, and connections that are refused with an answer."""
log = structlog.stdlib.get_logger(__name__)


def allow_connections(count: int) -> int:
    """Raise the soft limit of this process so that `count` clients can be connected, each with an upstream.

    Return how many clients can be. That is less than `count`, and a warning is logged, if the hard limit is
    too low: it is the administrator's and stays as it is. The usual soft limit of 1024 dates from programs
    that could not handle more.
    """
    needed = 2 * count + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return count
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed >= needed:
        return count
    possible = max(1, (allowed - _OTHERS) // 2)
    log.warning(
        "max_connections was lowered, because too few open files are allowed (ulimit -Hn)",
        max_connections=possible,
        configured=count,
        allowed=allowed,
        needed=needed,
    )
    return possible
