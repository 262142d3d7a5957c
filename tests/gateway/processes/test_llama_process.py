"""The supervisor, with a child that has llama-server's habits, and with llama-server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from slotgate.gateway.processes.command import LlamaCommand
from slotgate.gateway.processes.llama_process import LlamaProcess
from slotgate.gateway.processes.ports import LOOPBACK, free_port
from slotgate.gateway.processes.restart_policy import RestartLimits
from slotgate.gateway.processes.state import IllegalTransitionError, LlamaStartError, ProcessState
from slotgate.gateway.tools.run.find import find_server
from slotgate.gateway.tools.run.packages import Installed
from tests.support.leaks import child_processes
from tests.support.processes import child_program, command_line, vanishes

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0
EAGER = RestartLimits(first_delay_s=0.0)


class VirtualTime:
    """A clock and the sleep that moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class StateHistory:
    """The states that a process has passed through. A test can wait for them."""

    def __init__(self) -> None:
        self.states: list[ProcessState] = []
        self.pids: set[int] = set()
        self._changed = asyncio.Event()

    def __call__(self, process: LlamaProcess) -> None:
        self.states.append(process.state)
        if process.pid is not None:
            self.pids.add(process.pid)
        self._changed.set()

    async def until(self, state: ProcessState, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.states.count(state) < times:
                self._changed.clear()
                await self._changed.wait()


def llama(*habits: str, start_timeout_s: float = PATIENCE_S, shared: bool = False) -> LlamaCommand:
    command = child_program(*habits)
    return LlamaCommand("local", command, "tiny", start_timeout_s=start_timeout_s, shared=shared)


@asynccontextmanager
async def running(
    command: LlamaCommand,
    *,
    limits: RestartLimits = EAGER,
    virtual: VirtualTime | None = None,
    pick_port: Callable[[], int] = free_port,
    history: StateHistory | None = None,
    waits_for_requests: bool = False,
) -> AsyncIterator[tuple[LlamaProcess, StateHistory]]:
    """Start a process. At the end of the block no process of it may be left."""
    history, virtual = history or StateHistory(), virtual or VirtualTime()
    process = LlamaProcess(
        command,
        os.environ,
        limits=limits,
        waits_for_requests=waits_for_requests,
        on_change=[history],
        clock=virtual.clock,
        sleep=virtual.sleep,
        pick_port=pick_port,
    )
    async with process:
        yield process, history
    assert process.state is ProcessState.STOPPED
    assert not history.pids & set(child_processes())


def status(process: LlamaProcess, path: str, key: str | None = None) -> int:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{process.url}{path}", headers=headers, trust_env=False).status_code


async def test_a_process_becomes_ready_and_stops_without_a_failure() -> None:
    async with running(llama()) as (process, history):
        await process.wait_ready(PATIENCE_S)
        ready = (process.state, process.failure, process.pid in child_processes())
        await process.stop()

    assert ready == (ProcessState.READY, None, True)
    assert history.states == [
        ProcessState.STARTING,
        ProcessState.LOADING,
        ProcessState.READY,
        ProcessState.STOPPING,
        ProcessState.STOPPED,
    ]
    assert process.pid is None


async def test_a_process_can_be_started_again_after_a_stop() -> None:
    async with running(llama()) as (process, _):
        await process.wait_ready(PATIENCE_S)
        await process.stop()
        process.start()
        await process.wait_ready(PATIENCE_S)


async def test_starting_twice_is_refused() -> None:
    async with running(llama()) as (process, _):
        with pytest.raises(IllegalTransitionError):
            process.start()


async def test_the_key_is_required_and_shown_nowhere() -> None:
    async with running(llama()) as (process, _):
        await process.wait_ready(PATIENCE_S)

        assert process.api_key not in command_line(process.pid or 0)
        assert process.api_key not in repr(process)
        assert (status(process, "/props"), status(process, "/props", process.api_key)) == (401, 200)


@pytest.mark.slow
async def test_scenario_122_a_crash_loop_is_slowed_down_and_given_up() -> None:
    virtual = VirtualTime()
    async with running(llama("crash"), limits=RestartLimits(), virtual=virtual) as (process, history):
        with pytest.raises(LlamaStartError, match=r"failed to load the model, key \*+") as caught:
            await process.wait_ready(PATIENCE_S)

        assert process.state is ProcessState.GIVEN_UP
        assert history.states.count(ProcessState.STARTING) == 6
        assert virtual.now == 15.5
        assert process.api_key not in str(caught.value)
        assert process.failure is not None
        assert process.failure.reason == "exit status 1 (its model cannot be loaded)"


async def test_a_process_that_waits_for_requests_is_given_up_after_one_lasting_failure() -> None:
    async with running(llama("crash"), waits_for_requests=True) as (process, history):
        await history.until(ProcessState.GIVEN_UP)
        assert history.states.count(ProcessState.STARTING) == 1
        assert process.has_failed


@pytest.mark.slow
async def test_scenario_117_one_that_gave_up_can_be_started_and_keeps_the_rate() -> None:
    virtual = VirtualTime()
    async with running(llama("crash"), limits=RestartLimits(), virtual=virtual) as (process, history):
        await history.until(ProcessState.GIVEN_UP)
        process.start()
        await history.until(ProcessState.STARTING, times=7)

        assert virtual.now == 15.5 + 10.0


async def test_a_start_that_takes_too_long_is_ended_and_tried_again() -> None:
    async with running(llama("loading", start_timeout_s=0.2)) as (process, history):
        await history.until(ProcessState.LOADING, times=2)

        assert process.failure is not None
        assert "is loading the model" in process.failure.reason


async def test_waiting_ends_early_when_only_so_many_attempts_are_wanted() -> None:
    async with running(llama("crash"), limits=RestartLimits(first_delay_s=3600.0)) as (process, _):
        with pytest.raises(LlamaStartError, match="exit status 1"):
            await process.wait_ready(PATIENCE_S, attempts=1)


async def test_waiting_has_a_limit() -> None:
    async with running(llama("silent")) as (process, _):
        with pytest.raises(LlamaStartError, match=r"not ready after 0\.05 s"):
            await process.wait_ready(0.05)


async def test_a_child_that_dies_is_started_again_and_told_apart_from_a_stop() -> None:
    async with running(llama()) as (process, history):
        await process.wait_ready(PATIENCE_S)
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await history.until(ProcessState.BACKOFF)
        told = process.failure
        await history.until(ProcessState.READY, times=2)

        assert told is not None
        assert told.reason == "killed by SIGKILL"
        assert first not in child_processes()
        assert process.pid != first


async def test_scenario_123_one_that_lives_and_no_longer_works_can_be_restarted() -> None:
    async with running(llama()) as (process, history):
        await process.wait_ready(PATIENCE_S)
        process.restart("does not answer")
        await history.until(ProcessState.BACKOFF)

        assert process.failure is not None
        assert process.failure.reason == "does not answer"
        await history.until(ProcessState.READY, times=2)


async def test_scenario_118_a_child_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    async with running(llama("stubborn")) as (process, history):
        await process.wait_ready(PATIENCE_S)

        await process.stop(grace_s=0.05)

        assert not history.pids & set(child_processes())


async def test_two_stops_at_once_are_one() -> None:
    async with running(llama()) as (process, history):
        await process.wait_ready(PATIENCE_S)

        await asyncio.gather(process.stop(), process.stop())

        assert history.states.count(ProcessState.STOPPING) == 1


async def test_a_stop_in_a_hurry_needs_no_grace() -> None:
    async with running(llama("stubborn")) as (process, _):
        await process.wait_ready(PATIENCE_S)
        stopping = asyncio.ensure_future(process.stop(grace_s=3600.0))
        await asyncio.sleep(0)

        process.kill()

        async with asyncio.timeout(PATIENCE_S):
            await stopping


async def test_a_stop_interrupts_the_pause_between_starts() -> None:
    history = StateHistory()
    limits = RestartLimits(first_delay_s=3600.0)
    process = LlamaProcess(llama("crash"), os.environ, limits=limits, on_change=[history])
    process.start()
    await history.until(ProcessState.BACKOFF)

    async with asyncio.timeout(PATIENCE_S):
        await process.stop()

    assert process.state is ProcessState.STOPPED


async def test_cancelling_the_holding_task_leaves_no_process() -> None:
    held = StateHistory()

    async def hold() -> None:
        async with LlamaProcess(llama("stubborn"), os.environ, on_change=[held]) as process:
            await process.wait_ready(PATIENCE_S)
            await asyncio.Event().wait()

    holding = asyncio.ensure_future(hold())
    await held.until(ProcessState.READY)
    holding.cancel()
    for pid in held.pids:
        os.kill(pid, signal.SIGKILL)  # it is stubborn, and this test is not about the grace period
    await asyncio.wait({holding})

    assert holding.cancelled()
    assert held.states[-1] is ProcessState.STOPPED


class Stranger(StateHistory):
    """A server of another program. It takes the port just before our first child does, and has one answer."""

    def __init__(self, status_line: str) -> None:
        super().__init__()
        self._status_line = status_line
        self._serving: asyncio.Task[asyncio.Server] | None = None
        self.url = ""

    def __call__(self, process: LlamaProcess) -> None:
        super().__call__(process)
        if process.state is ProcessState.LOADING and self._serving is None:
            self.url = process.url
            listener = socket.create_server((LOOPBACK, int(process.url.rpartition(":")[2])))
            self._serving = asyncio.ensure_future(asyncio.start_server(self._answer, sock=listener))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {self._status_line}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        writer.write(head.encode())
        writer.close()

    async def leave(self) -> None:
        assert self._serving is not None
        (await self._serving).close()


@pytest.mark.parametrize("answer", ["200 OK", "404 Not Found", "401 Unauthorized"])
async def test_scenario_120_a_stranger_on_the_port_is_noticed_and_left(answer: str) -> None:
    stranger = Stranger(answer)
    async with running(llama("silent"), history=stranger) as (process, history):
        await history.until(ProcessState.BACKOFF)
        told = process.failure
        await history.until(ProcessState.LOADING, times=2)

        assert told is not None
        assert "not the server that was started" in told.reason
        assert process.url != stranger.url
        await stranger.leave()


async def test_scenario_120_a_port_that_is_taken_in_the_last_moment_costs_one_start() -> None:
    stranger = Stranger("200 OK")
    async with running(llama(), history=stranger) as (process, history):
        await process.wait_ready(PATIENCE_S)

        assert history.states.count(ProcessState.STARTING) == 2
        assert status(process, "/props", process.api_key) == 200
        await stranger.leave()


async def test_a_port_that_is_taken_before_the_start_costs_nothing() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        ports = iter([listener.getsockname()[1]])
        async with running(llama(), pick_port=lambda: next(ports, None) or free_port()) as (process, history):
            await process.wait_ready(PATIENCE_S)

            assert history.states.count(ProcessState.STARTING) == 1


async def test_the_next_process_is_found_where_the_last_one_was() -> None:
    async with running(llama()) as (process, history):
        await process.wait_ready(PATIENCE_S)
        before = process.url
        process.restart("again")
        await history.until(ProcessState.READY, times=2)

        assert process.url == before


async def test_the_cache_option_is_asked_of_the_program_itself() -> None:
    async with running(llama(shared=True)) as (process, _):
        await process.wait_ready(PATIENCE_S)

        assert command_line(process.pid or 0)[-2:] == ["--cache-ram", "0"]


@pytest.mark.slow
async def test_fifty_restarts_leave_no_zombie() -> None:
    before = set(child_processes())
    limits = RestartLimits(max_starts=50)
    async with running(llama("crash"), limits=limits) as (_, history):
        await history.until(ProcessState.GIVEN_UP)

        assert history.states.count(ProcessState.STARTING) == 50
        assert set(child_processes()) == before


@pytest.mark.real
async def test_a_real_llama_server_is_ready_restarts_and_stops_within_its_grace_while_a_request_runs(
    tiny_model: Path,
) -> None:
    server = find_server(None, {"PATH": "/nowhere"}, Installed())
    command = LlamaCommand(
        "real",
        (str(server.path), "--model", str(tiny_model), "--threads", "1"),
        alias="tiny",
        environment=server.environment,
        shared=True,
    )
    async with running(command) as (process, history):
        await process.wait_ready(PATIENCE_S)
        process.restart("because")
        await history.until(ProcessState.READY, times=2)
        async with endless_stream(process) as events:
            await anext(events)
            began = time.monotonic()
            await process.stop(grace_s=0.3)

    assert time.monotonic() - began < 2.0
    assert history.states.count(ProcessState.STARTING) == 2


@asynccontextmanager
async def endless_stream(process: LlamaProcess) -> AsyncIterator[AsyncIterator[bytes]]:
    """Start a generation that does not end by itself, so that a test can cut it."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
    headers = {"authorization": f"Bearer {process.api_key}"}
    with suppress(httpx.RemoteProtocolError):
        async with httpx.AsyncClient(base_url=process.url, headers=headers, trust_env=False) as client:
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                yield response.aiter_raw()


PARENT = """
import asyncio, os, sys
from slotgate.gateway.tools.run.find import find_server
from slotgate.gateway.processes.command import LlamaCommand
from slotgate.gateway.processes.llama_process import LlamaProcess

async def main():
    async with LlamaProcess(LlamaCommand("local", tuple(sys.argv[1:])), os.environ) as process:
        await process.wait_ready(20)
        print(process.pid, file=sys.stderr, flush=True)
        await asyncio.Event().wait()

{run}
"""


@pytest.mark.slow
@pytest.mark.parametrize("run", ["asyncio.run(main())", "import uvloop; uvloop.run(main())"])
def test_scenario_118_no_orphan_when_the_parent_is_killed(run: str) -> None:
    command = (sys.executable, "-c", PARENT.format(run=run), *child_program("stubborn"))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stderr is not None
        orphan = int(parent.stderr.readline())
        parent.kill()

    assert vanishes(orphan, within_s=2)
