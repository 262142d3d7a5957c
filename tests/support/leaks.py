"""Checks for tasks, upstream connections and child processes that a test leaves behind.

Each check compares with the state before the test, and waits a moment for the rest to end by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.support.scripted import ScriptedUpstream

_MOMENT_S = 1.0


def child_processes() -> dict[int, str]:
    """Return pid -> command line of the children of this process, including those that were not reaped."""
    listed = (_children(thread) for thread in Path("/proc/self/task").iterdir())
    return {int(pid): _command(pid) for pids in listed for pid in pids}


def _children(thread: Path) -> list[str]:
    try:
        return (thread / "children").read_text().split()
    except OSError:
        return []  # it has ended, and its children have another parent


def _command(pid: str) -> str:
    try:
        return Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode() or "a zombie"
    except OSError:
        return "gone"


@contextmanager
def no_children_left() -> Iterator[None]:
    """Fail if the block starts child processes and does not reap them."""
    before = child_processes()
    yield
    left = {pid: command for pid, command in child_processes().items() if pid not in before}
    assert not left, f"child processes left: {left}"


@asynccontextmanager
async def no_tasks_left(within: float = _MOMENT_S) -> AsyncIterator[None]:
    """Fail if tasks of the block do not end within a moment."""
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if not _is_the_tests_own(task)}
    if left:
        _, left = await asyncio.wait(left, timeout=within)
    assert not left, f"tasks left: {left}"


def _is_the_tests_own(task: asyncio.Task[Any]) -> bool:
    """Return True for the running task, and for the task in which anyio's plugin waits for it."""
    name = getattr(task.get_coro(), "__qualname__", "")
    return task is asyncio.current_task() or name == "TestRunner._call_in_runner_task"


@asynccontextmanager
async def no_connections_left(
    *upstreams: ScriptedUpstream, idle: int = 0, within: float = _MOMENT_S
) -> AsyncIterator[None]:
    """Fail if a client still has more than `idle` connections to one of `upstreams` a moment later."""
    yield
    for upstream in upstreams:
        await upstream.at_most_open(idle, within)
