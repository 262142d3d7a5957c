"""SIGTERM to `slotgate serve`: some requests end at once, some may finish in time, and the rest is cut."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.support.client import Frame, RawClient, request_bytes
from tests.support.connection import ReceivedRequest
from tests.support.gateway import CHAT, chat, text_of
from tests.support.notation import DONE, END, STOP, H, T, chunked
from tests.support.processes import child_program, vanishes
from tests.support.script import Fin, Flood, Gate, Paced, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream
from tests.support.served import Served, backend_table, served_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OPERATOR = b"authorization: Bearer sg-operator"
PROMPT_S = 2.0
"""Seconds that an immediate step may take on a busy machine."""
STOP_SIGNALS = pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])


def configuration(fu: ScriptedUpstream, **server: float) -> str:
    lines = [f"{key} = {value}" for key, value in server.items()]
    lines.append(f'operator_key_hashes = ["{hash_key("sg-operator")}"]')
    return "\n".join(["[server]", *lines, backend_table(fu.url)])


def finishing_at(gate: Gate) -> Script:
    return [Write(H + chunked(T("a"))), gate, Write(chunked(T("b"), STOP, DONE) + END), Fin()]


async def queued(served: Served, depth: int) -> None:
    """Wait until this many requests wait for a slot."""
    async with asyncio.timeout(3), await RawClient.connect(served.url) as client:
        while True:
            await client.request("GET", "/admin/status", OPERATOR)
            if (await client.json())["queue"]["depth"] == depth:
                return
            await asyncio.sleep(0.01)


async def first_frame(client: RawClient) -> None:
    await client.post(CHAT, chat())
    assert client.status == 200
    async for _ in client.frames():
        return


async def rest(client: RawClient) -> list[Frame]:
    frames = [frame async for frame in client.frames()]
    assert client.clean_end, client
    return frames


def error_of(frame: bytes) -> dict[str, object]:
    assert frame.startswith(b"data: {"), frame
    error: dict[str, object] = orjson.loads(frame[6:])["error"]
    return error


def refuses(url: str) -> bool:
    """Return True if no program listens there."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def children_of(pid: int) -> list[int]:
    listed = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for children in listed for child in children.split()]


def clock() -> float:
    return asyncio.get_running_loop().time()


async def test_scenario_110_streams_may_finish_within_the_grace_and_waiting_requests_are_refused_at_once(
    tmp_path: Path,
) -> None:
    grace = 1.0
    short, medium = Gate(), Gate()
    scripts: Iterator[Script] = iter([finishing_at(short), finishing_at(medium), [Write(H), Paced(rate=50)]])
    fu = ScriptedUpstream(scripts={CHAT: lambda _: next(scripts)})
    fu.llama.total_slots = 3
    async with fu, served_gateway(tmp_path, configuration(fu, shutdown_grace_s=grace)) as served:
        async with AsyncExitStack() as clients:
            streams = [await clients.enter_async_context(await served.client()) for _ in range(3)]
            waiting = [await clients.enter_async_context(await served.client()) for _ in range(5)]
            for client in streams:
                await first_frame(client)
            for number, client in enumerate(waiting):
                await client.send(request_bytes("POST", CHAT, json=chat(stream=number % 2 == 0)))
            await queued(served, 5)

            began = clock()
            served.process.send_signal(signal.SIGTERM)
            for client in waiting:
                head = await client.head()
                assert client.status == 503
                assert int(head.get(b"retry-after") or 0) >= 1
                assert (await client.json())["error"]["code"] == "draining"
                assert await client.eof()
            assert clock() - began < PROMPT_S
            assert refuses(served.url)

            short.event.set()
            frames = await rest(streams[0])
            assert (text_of(frames), frames[-1].data) == ("b", DONE)
            assert clock() - began < grace

            for client in streams[1:]:
                frames = await rest(client)
                error = error_of(frames[-1].data)
                assert (error["type"], error["code"]) == ("overloaded_error", "draining")
            assert grace - 0.1 < clock() - began < grace + PROMPT_S
            assert await served.exit_code() == 0
            assert clock() - began < grace + 1.0 + PROMPT_S
            await fu.all_closed()
    assert len(fu.generations) == 3
    assert served.complaints() == []


@STOP_SIGNALS
async def test_a_gateway_with_nothing_to_do_stops_at_once(tmp_path: Path, sign: signal.Signals) -> None:
    """Idle connections do not delay the end, whether they ever sent a request or not."""
    fu = ScriptedUpstream()
    async with fu, served_gateway(tmp_path, configuration(fu)) as served:
        async with await served.client() as idle, await served.client():
            await idle.request("GET", "/health")
            await idle.body()
            began = clock()
            served.process.send_signal(sign)
            assert await idle.eof()
            assert await served.exit_code() == 0
            assert clock() - began < PROMPT_S
    assert served.complaints() == []


async def test_the_listener_stays_open_for_the_drain_delay_and_says_that_it_drains(tmp_path: Path) -> None:
    gate = Gate()
    fu = ScriptedUpstream(scripts={CHAT: finishing_at(gate)})
    async with fu, served_gateway(tmp_path, configuration(fu, drain_delay_s=0.5)) as served:
        async with await served.client() as running:
            await first_frame(running)
            began = clock()
            served.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
            for method, target, body, status in (
                ("GET", "/ready", None, 503),
                ("GET", "/health", None, 200),
                ("POST", CHAT, chat(), 503),
            ):
                async with await served.client() as client:
                    head = await client.request(method, target, json=body)
                    assert client.status == status
                    assert head.get(b"connection") == b"close"
                    await client.body()
                    assert await client.eof()
            async with await served.client() as silent:
                assert clock() - began < PROMPT_S
                assert await silent.eof(within=2)
                assert 0.4 < clock() - began < 0.5 + PROMPT_S
            assert refuses(served.url)
            gate.event.set()
            assert (await rest(running))[-1].data == DONE
            assert await served.exit_code() == 0
    assert served.complaints() == []


async def test_a_request_whose_answer_has_not_begun_is_503_when_the_grace_is_over(tmp_path: Path) -> None:
    """It is a whole answer, a stream before its backend's headers, or a stream before its first event."""
    scripts: dict[bool, Script] = {True: [Write(H), Stall()], False: [Stall()]}

    def script(request: ReceivedRequest) -> Script:
        return scripts[b'"late"' in request.body]

    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, served_gateway(tmp_path, configuration(fu, shutdown_grace_s=0.3)) as served:
        async with AsyncExitStack() as connections:
            clients = [await connections.enter_async_context(await served.client()) for _ in range(3)]
            bodies = [chat(stream=False), chat("early"), chat("late")]
            for client, body in zip(clients, bodies, strict=True):
                await client.send(request_bytes("POST", CHAT, json=body))
            await fu.generation(2)
            served.process.send_signal(signal.SIGTERM)
            for client in clients:
                await client.head()
                assert client.status == 503
                assert (await client.json())["error"]["code"] == "draining"
            assert await served.exit_code() == 0
    assert served.complaints() == []


@pytest.mark.parametrize("loads_in_time", [True, False])
async def test_a_request_that_waits_for_a_load_has_the_grace_for_it(
    tmp_path: Path, loads_in_time: bool
) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"), STOP, DONE) + END), Fin()]})
    grace_s = 20.0 if loads_in_time else 0.3
    async with fu:
        text = configuration(fu, shutdown_grace_s=grace_s) + "health_interval_s = 0.05\n"
        async with served_gateway(tmp_path, text) as served, await served.client() as client:
            fu.llama.loading = True
            await served.says('"state": "loading"')
            await client.send(request_bytes("POST", CHAT, json=chat()))
            await queued(served, 1)
            served.process.send_signal(signal.SIGTERM)
            await served.says('"event": "draining"')
            if loads_in_time:
                fu.llama.loading = False
                await client.head()
                frames = await rest(client)
                assert (client.status, text_of(frames), frames[-1].data) == (200, "a", DONE)
            else:
                await client.head()
                assert client.status == 503
                assert (await client.json())["error"]["code"] == "draining"
            assert await served.exit_code() == 0
    assert len(fu.generations) == int(loads_in_time)


async def test_a_client_that_does_not_read_or_does_not_end_its_request_holds_nothing_up(
    tmp_path: Path,
) -> None:
    grace = 0.3
    fu = ScriptedUpstream(scripts={CHAT: [Write(H), Flood(64 * 1024 * 1024)]})
    async with fu, served_gateway(tmp_path, configuration(fu, shutdown_grace_s=grace)) as served:
        async with await served.client(receive_buffer=4096) as wedged, await served.client() as slow:
            await first_frame(wedged)
            wedged.stop_reading()
            await slow.send(request_bytes("POST", CHAT, json=chat())[:-5])
            async with await served.client() as later:
                await later.request("GET", "/health")
            began = clock()
            served.process.send_signal(signal.SIGTERM)
            assert await served.exit_code() == 0
            assert clock() - began < grace + 1.0 + PROMPT_S
            await fu.all_closed()
    assert served.complaints() == []


@STOP_SIGNALS
async def test_a_second_signal_ends_the_process_now(tmp_path: Path, sign: signal.Signals) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H), Paced(rate=50)]})
    async with fu, served_gateway(tmp_path, configuration(fu)) as served:
        async with await served.client() as client:
            await first_frame(client)
            served.process.send_signal(signal.SIGTERM)
            await served.says("draining")
            began = clock()
            served.process.send_signal(sign)
            assert await served.exit_code() == 128 + sign
            assert clock() - began < PROMPT_S
            await fu.all_closed()


async def test_a_second_signal_ends_a_process_that_waits_for_a_stubborn_child(tmp_path: Path) -> None:
    command = orjson.dumps(child_program("stubborn")).decode()
    table = f'[[backend]]\nname = "own"\ncommand = {command}\nmodels = ["m"]\nslots = 1\n'
    async with served_gateway(tmp_path, table) as served:
        [child] = children_of(served.process.pid)
        served.process.send_signal(signal.SIGTERM)
        await served.says('"state": "stopping"')
        began = clock()
        served.process.send_signal(signal.SIGTERM)
        assert await served.exit_code() == 128 + signal.SIGTERM
        assert clock() - began < PROMPT_S
        assert vanishes(child, 1.0)


async def test_the_log_names_the_address_of_the_listener(tmp_path: Path) -> None:
    fu = ScriptedUpstream()
    async with fu, served_gateway(tmp_path, configuration(fu)) as served:
        lines = [orjson.loads(line) for line in served.log.read_bytes().splitlines()]
        [listening] = [line for line in lines if line["event"] == "listening"]
        assert listening["url"] == served.url


def test_a_taken_port_is_exit_code_2_and_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "slotgate.toml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path.write_text(f"[server]\nport = {port}\n" + backend_table("http://127.0.0.1:9"))
        command = [sys.executable, "-m", "slotgate", "serve", "--config", str(path)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False)
    sentence = f"Cannot listen on 127.0.0.1:{port}: another program listens there; see server.port"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == sentence
    assert "Traceback" not in done.stderr
