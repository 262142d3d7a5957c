"""A child process on the real event loop is read, ended and reaped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from slotgate.gateway.processes.child import Child, Exit
from slotgate.gateway.processes.output import ChildOutput
from tests.support.leaks import child_processes
from tests.support.processes import child_program, vanishes

pytestmark = pytest.mark.anyio


class Lines(ChildOutput):
    """Output that can be waited for."""

    def __init__(self) -> None:
        super().__init__(self._came)
        self._changed = asyncio.Event()

    def _came(self, _line: str) -> None:
        self._changed.set()

    async def until(self, word: str) -> str:
        async with asyncio.timeout(20):
            while not any(word in line for line in self.tail):
                self._changed.clear()
                await self._changed.wait()
        return next(line for line in self.tail if word in line)


@asynccontextmanager
async def started(*habits: str) -> AsyncIterator[tuple[Child, Lines]]:
    lines = Lines()
    child = await Child.start(child_program(*habits), dict(os.environ), lines)
    try:
        yield child, lines
    finally:
        await child.end(grace_s=0)
    assert child.pid not in child_processes()


async def test_both_outputs_of_a_child_are_read_to_the_last_line() -> None:
    lines = Lines()
    script = "echo out; echo error >&2; printf 'no newline'"

    child = await Child.start(("sh", "-c", script), dict(os.environ), lines)
    ended = await child.wait()

    assert (ended, lines.tail) == (Exit(0), ("out", "error", "no newline"))


async def test_a_child_that_heeds_sigterm_is_not_killed() -> None:
    async with started("silent") as (child, lines):
        await lines.until("silent")

        await child.end(grace_s=20)

        assert child.exit == Exit(-signal.SIGTERM)


async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    async with started("silent", "stubborn") as (child, lines):
        await lines.until("silent")

        await child.end(grace_s=0.05)

        assert child.exit == Exit(-signal.SIGKILL)


async def test_ending_twice_is_no_error() -> None:
    async with started("silent") as (child, _):
        await child.end(grace_s=1)
        await child.end(grace_s=1)


async def test_a_cancelled_end_still_kills_and_reaps() -> None:
    async with started("silent", "stubborn") as (child, lines):
        await lines.until("silent")
        ending = asyncio.ensure_future(child.end(grace_s=3600))
        await asyncio.sleep(0)

        ending.cancel()
        await asyncio.wait({ending})

        assert ending.cancelled()
        assert child.exit == Exit(-signal.SIGKILL)
        assert child.pid not in child_processes()


async def test_a_cancelled_start_leaves_no_process() -> None:
    before = child_processes()
    starting = asyncio.ensure_future(Child.start(child_program("silent"), dict(os.environ), Lines()))
    await asyncio.sleep(0)

    starting.cancel()
    await asyncio.wait({starting})

    assert starting.cancelled()
    assert child_processes() == before


async def test_processes_that_the_child_started_go_with_it() -> None:
    async with started("parent", "silent") as (child, lines):
        grandchild = int((await lines.until("grandchild")).split()[-1])

        child.kill()
        await child.wait()

        assert vanishes(grandchild, within_s=5)


async def test_a_program_that_does_not_exist_says_so_and_ends() -> None:
    lines = Lines()

    child = await Child.start(("no-such-program",), dict(os.environ), lines)

    assert await child.wait() == Exit(127)
    assert lines.tail == ("cannot start no-such-program: No such file or directory",)


@pytest.mark.slow
async def test_a_flood_of_output_does_not_block_the_child() -> None:
    lines = Lines()

    child = await Child.start(("sh", "-c", "yes | head -c 1000000; echo done"), dict(os.environ), lines)

    assert await child.wait() == Exit(0)
    assert lines.tail[-1] == "done"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "exit status 3"),
        (-9, "killed by SIGKILL"),
        (-4, "killed by SIGILL: this build is for another processor than this machine has"),
        (-64, "killed by SIGRTMAX"),
        (-99, "killed by signal 99"),
    ],
)
async def test_an_exit_is_described_in_words(code: int, words: str) -> None:
    assert str(Exit(code)) == words
