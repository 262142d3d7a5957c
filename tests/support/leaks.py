"""What must not be left when a test is over: tasks, upstream connections, child processes.

Everything is compared with how it was before, and given a moment to go by itself.
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
    """This process's children by id, with their command lines; one that was not reaped is among them."""
    listed = (_children(thread) for thread in Path("/proc/self/task").iterdir())
    return {int(pid): _command(pid) for pids in listed for pid in pids}


def _children(thread: Path) -> list[str]:
    try:
        return (thread / "children").read_text().split()
    except OSError:
        return []  # it ended meanwhile; its children are now another's


def _command(pid: str) -> str:
    try:
        return Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode() or "a zombie"
    except OSError:
        return "gone"


@contextmanager
def no_children_left() -> Iterator[None]:
    """Fail if child processes were started and not reaped."""
    before = child_processes()
    yield
    left = {pid: command for pid, command in child_processes().items() if pid not in before}
    assert not left, f"child processes left: {left}"


@asynccontextmanager
async def no_tasks_left(within: float = _MOMENT_S) -> AsyncIterator[None]:
    """Fail if tasks that were started do not end within a moment."""
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if not _is_the_tests_own(task)}
    if left:
        _, left = await asyncio.wait(left, timeout=within)
    assert not left, f"tasks left: {left}"


def _is_the_tests_own(task: asyncio.Task[Any]) -> bool:
    """The running task, or the one through which anyio's plugin waits for it."""
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
