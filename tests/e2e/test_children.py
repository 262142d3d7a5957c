"""Backends that are processes of the gateway's own: how they start, die, come back and end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from slotgate.gateway.app.serve import assemble
from slotgate.gateway.backends.backend import Backend, BackendState
from slotgate.gateway.backends.fleet import Fleet
from slotgate.gateway.processes.command import LlamaCommand
from slotgate.gateway.processes.llama_process import LlamaProcess
from slotgate.gateway.processes.managed_processes import ManagedProcesses
from slotgate.gateway.processes.ports import LOOPBACK
from slotgate.gateway.processes.restart_policy import RestartLimits
from slotgate.gateway.processes.state import ProcessState
from slotgate.gateway.settings import parse
from slotgate.gateway.tools.run.packages import Installed
from tests.support.client import RawClient
from tests.support.processes import child_program, children_of, vanishes
from tests.support.served import Served, served_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PATIENCE_S = 20.0


class WatchedChild:
    """A fleet of one child, whose states can be waited for."""

    def __init__(self, process: LlamaProcess, fleet: Fleet) -> None:
        self.process = process
        self.backend: Backend = fleet.backends["own"]
        self.seen: list[ProcessState] = []
        self._changed = asyncio.Event()
        process.on_change.append(self._note)

    def _note(self, process: LlamaProcess) -> None:
        self.seen.append(process.state)
        self._changed.set()

    async def until(self, state: ProcessState) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while state not in self.seen:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def watched(*habits: str) -> AsyncIterator[WatchedChild]:
    command = child_program(*habits)
    settings = parse({"backend": [{"name": "own", "command": list(command), "models": ["m"]}]}, {})
    limits = RestartLimits(first_delay_s=0.0)
    process = LlamaProcess(LlamaCommand("own", command, "m"), os.environ, limits=limits)
    async with ManagedProcesses([process]) as children:
        if not habits:
            await process.wait_ready(PATIENCE_S)
        async with assemble(children.located(settings), children.environ({})) as (_, parts):
            fleet = parts.runtime.fleet
            children.report_to(fleet.backends)
            yield WatchedChild(process, fleet)


async def test_scenario_122_a_process_that_was_given_up_says_so_where_readiness_is_asked() -> None:
    async with watched("crash") as own:
        await own.until(ProcessState.GIVEN_UP)

        assert own.backend.state is BackendState.GIVEN_UP
        assert own.backend.explanation.startswith("given up: exit status 1")


async def test_a_process_that_died_admits_nothing_from_that_moment_on() -> None:
    async with watched() as own:
        assert own.process.pid is not None
        os.kill(own.process.pid, signal.SIGKILL)
        await own.until(ProcessState.BACKOFF)

        assert not own.backend.pool.admitting
        assert "killed by SIGKILL" in own.backend.explanation
        await own.until(ProcessState.READY)
        assert own.backend.process_failure == ""


async def test_scenario_120_a_process_that_lost_its_port_is_found_at_another() -> None:
    async with watched() as own:
        before = own.process.url
        listeners: list[socket.socket] = []

        def take_port(process: LlamaProcess) -> None:
            if process.state is ProcessState.BACKOFF:
                listeners.append(socket.create_server((LOOPBACK, int(before.rpartition(":")[2]))))

        own.process.on_change.insert(0, take_port)
        own.process.restart("to lose its port")
        await own.until(ProcessState.READY)

        assert own.process.url != before
        assert str(own.backend.base_url) == own.process.url
        for listener in listeners:
            listener.close()


def configuration(model: Path) -> str:
    server = Installed().server({})
    assert server is not None
    command = [str(server[0]), "--model", str(model), "--threads", "1", "--parallel", "1"]
    return f'[[backend]]\nname = "own"\ncommand = {orjson.dumps(command).decode()}\nmodels = ["m"]\n'


async def chat(served: Served) -> tuple[int, str]:
    body = {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "Hello"}]}
    async with await RawClient.connect(served.url) as client:
        await client.request("POST", "/v1/chat/completions", json=body)
        answer = orjson.loads(await client.body())
        return client.status, answer["choices"][0]["message"]["content"] if client.status == 200 else str(
            answer
        )


async def successor_of(child: int, served: Served) -> int:
    """Return the pid of the process that the gateway has started in its place."""
    async with asyncio.timeout(PATIENCE_S):
        while (found := children_of(served.process.pid)) in ([], [child]):
            await asyncio.sleep(0.02)
    return found[0]


@pytest.mark.real
async def test_serve_runs_backends_with_a_command_and_restarts_them(tmp_path: Path, tiny_model: Path) -> None:
    async with served_gateway(tmp_path, configuration(tiny_model)) as served:
        first = await chat(served)
        (child,) = children_of(served.process.pid)
        os.kill(child, signal.SIGKILL)
        successor = await successor_of(child, served)
        second = await chat(served)

        assert await served.stop() == 0
        assert vanishes(successor, within_s=0)

    assert (first[0], second[0]) == (200, 200), (first, second)
    assert first[1]


@pytest.mark.real
async def test_serve_loads_on_demand_and_stops_the_processes_that_it_loaded(
    tmp_path: Path, tiny_model: Path
) -> None:
    async with served_gateway(tmp_path, configuration(tiny_model) + 'load = "demand"\n') as served:
        before = children_of(served.process.pid)
        answer = await chat(served)
        (child,) = children_of(served.process.pid)

        assert await served.stop() == 0
        assert vanishes(child, within_s=0)

    assert (before, answer[0]) == ([], 200), answer
