"""The leak checks find leaks and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess

import pytest

from tests.support.client import RawClient
from tests.support.leaks import child_processes, no_children_left, no_connections_left, no_tasks_left
from tests.support.scripted import ScriptedUpstream
from tests.support.virtual_time import run_virtual


def test_a_task_that_ends_in_a_moment_is_not_a_leak() -> None:
    async def main() -> None:
        async with no_tasks_left():
            background = asyncio.create_task(asyncio.sleep(0.5))
        assert background.done()

    run_virtual(main())


def test_a_task_that_stays_is_a_leak() -> None:
    async def main() -> None:
        old = asyncio.create_task(asyncio.sleep(60), name="old")
        async with no_tasks_left():
            stray = asyncio.create_task(asyncio.sleep(60), name="stray")
        assert (old.done(), stray.done()) == (False, True)

    with pytest.raises(AssertionError, match="stray"):
        run_virtual(main())


def test_a_child_that_was_not_reaped_is_a_leak() -> None:
    check = no_children_left()
    check.__enter__()
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.pid in child_processes()
    with pytest.raises(AssertionError, match=str(child.pid)):
        check.__exit__(None, None, None)
    child.wait()
    assert child.pid not in child_processes()


@pytest.mark.anyio
async def test_an_open_upstream_connection_is_a_leak() -> None:
    async with ScriptedUpstream() as fu, await RawClient.connect(fu.url) as client:
        await fu.until(lambda: fu.open)
        async with no_connections_left(fu, idle=1):
            pass
        check = no_connections_left(fu, within=0.01)
        await check.__aenter__()
        with pytest.raises(AssertionError, match="1 open"):
            await check.__aexit__(None, None, None)
        client.close()
        async with no_connections_left(fu):
            pass
