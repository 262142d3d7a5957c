"""`slotgate run`: the plan, the output, and the program as a process."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.processes.llama_process import LlamaProcess
from slotgate.gateway.processes.managed_processes import ManagedProcesses
from slotgate.gateway.processes.ports import LOOPBACK, free_port
from slotgate.gateway.processes.restart_policy import RestartLimits
from slotgate.gateway.processes.state import LlamaStartError
from slotgate.gateway.settings import Settings, parse
from slotgate.gateway.tools.run.find import FoundModel, FoundServer
from slotgate.gateway.tools.run.kept_keys import RunKeys
from slotgate.gateway.tools.run.output import LoadProgress, banner, url_of
from slotgate.gateway.tools.run.plan import RunOptions, RunPlan, alias_of
from slotgate.gateway.tools.run.run import loaded, port_fault
from tests.support.processes import child_program, children_of, command_line, vanishes

pytestmark = pytest.mark.slow

KEYS = RunKeys("sg-client", "sg-operator")
MODEL = FoundModel(Path("/models/Tiny-Q4_K_M.gguf"), 1_500_000_000, "the argument")


def plan(options: RunOptions, server: Path = Path("/bin/llama-server")) -> RunPlan:
    return RunPlan(FoundServer(server, {"LD_LIBRARY_PATH": "/wheel"}, "$PATH"), MODEL, "tiny", options)


@pytest.mark.parametrize(
    ("file", "alias"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL-00001-of-00002.gguf", "qwen3-30b-a3b"),
        ("gemma-3-270m-it-BF16.gguf", "gemma-3-270m-it"),
        ("Mein Modell (neu).gguf", "mein-modell-neu"),
        ("模型.gguf", "model"),
        ("x" * 300 + ".gguf", "x" * 128),
    ],
)
def test_the_alias_of_a_model_fits_into_a_url(file: str, alias: str) -> None:
    assert alias_of(Path(file)) == alias


def test_the_options_become_arguments_of_llama_server() -> None:
    command = plan(RunOptions(parallel=2, ctx=8192)).command

    assert command.command == (
        *("/bin/llama-server", "--model", "/models/Tiny-Q4_K_M.gguf"),
        *("--parallel", "2", "--ctx-size", "8192"),
    )
    assert (command.alias, dict(command.environment)) == ("tiny", {"LD_LIBRARY_PATH": "/wheel"})
    assert plan(RunOptions()).command.command[3:] == ()


def test_the_settings_have_the_keys_as_hashes() -> None:
    settings = plan(RunOptions(host="0.0.0.0", port=9000)).settings(KEYS, Path("/state"))

    assert (settings.server.host, settings.server.port) == ("0.0.0.0", 9000)
    assert settings.server.operator_key_hashes == (hash_key("sg-operator"),)
    assert [tenant.key_hashes for tenant in settings.tenants] == [(hash_key("sg-client"),)]
    assert [backend.models for backend in settings.backends] == [("tiny",)]
    assert settings.usage.sqlite_file == Path("/state/usage.db")


def test_the_banner_can_be_pasted() -> None:
    text = banner(plan(RunOptions(port=9000)), KEYS)

    assert "curl -N http://127.0.0.1:9000/v1/chat/completions" in text
    assert "-H 'Authorization: Bearer sg-client'" in text
    assert '"model":"tiny","stream":true' in text
    assert "http://127.0.0.1:9000/admin/chat " in text
    assert "Ctrl-C" in text


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("localhost", "http://localhost:80"),
    ],
)
def test_the_url_is_one_that_this_machine_can_reach(host: str, url: str) -> None:
    assert url_of(host, 80) == url


def test_a_taken_port_is_reported_with_a_free_one() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        fault = port_fault(LOOPBACK, port)

    assert fault is not None
    assert fault.startswith(f"cannot listen on 127.0.0.1, port {port}: Address already in use\n")
    assert "Another port: --port" in fault


def test_a_port_in_use_on_another_address_is_free() -> None:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        assert port_fault(LOOPBACK, listener.getsockname()[1]) is None


def test_a_host_that_does_not_exist_is_reported() -> None:
    assert "cannot listen on 203.0.113.1" in (port_fault("203.0.113.1", free_port()) or "")


class ManualClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class TerminalStream(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress_of(stream: io.StringIO, seconds: int) -> str:
    clock = ManualClock()
    progress = LoadProgress(stream, clock)
    progress.begin("loading tiny")
    for _ in range(seconds):
        clock.now += 1.0
        progress.tick()
    progress.end("loaded")
    return stream.getvalue()


def test_progress_on_a_terminal_counts_in_one_line() -> None:
    assert progress_of(TerminalStream(), 2) == "loading tiny …\n\r  1 s\r  2 s\rloaded after 2.0 s\n"


def test_progress_in_a_file_is_a_line_every_ten_seconds() -> None:
    lines = progress_of(io.StringIO(), 21).splitlines()

    assert lines == ["loading tiny …", "loading tiny: 10 s", "loading tiny: 20 s", "loaded after 21.0 s"]


def child_of(tmp_path: Path, *habits: str) -> tuple[RunPlan, LlamaProcess]:
    """Return a plan whose llama-server is `child_program.py`."""
    script = tmp_path / "llama-server"
    script.write_text(f'#!/bin/sh\nexec {" ".join(child_program(*habits))} "$@"\n')
    script.chmod(0o755)
    made = plan(RunOptions(), script)
    return made, LlamaProcess(made.command, os.environ, limits=RestartLimits(first_delay_s=0.0))


@pytest.mark.anyio
async def test_loading_shows_the_parts_and_the_progress(tmp_path: Path) -> None:
    made, process = child_of(tmp_path)
    said = io.StringIO()
    async with process:
        await loaded(process, made, said)

    lines = said.getvalue().splitlines()
    assert lines[:3] == [
        f"llama-server: {tmp_path}/llama-server ($PATH)",
        "model: /models/Tiny-Q4_K_M.gguf (the argument)",
        "loading tiny, 1.5 GB …",
    ]
    assert lines[-1].startswith("loaded after ")


@pytest.mark.anyio
async def test_a_failed_load_raises_llama_servers_error(
    tmp_path: Path,
) -> None:
    made, process = child_of(tmp_path, "crash")
    async with process:
        with pytest.raises(LlamaStartError, match="failed to load the model"):
            await loaded(process, made, io.StringIO())


@pytest.mark.anyio
async def test_a_backend_with_a_command_becomes_one_with_a_url_and_a_key() -> None:
    backends = [
        {"name": "own", "command": list(child_program()), "models": ["a", "b"]},
        {"name": "far", "url": "http://10.0.0.5:8081"},
    ]
    settings = parse({"backend": backends, "model": [{"name": "a", "upstream_name": "model-a"}]}, {})

    async with ManagedProcesses.of(settings, os.environ) as children:
        (process,) = children
        await process.wait_ready(20.0)
        arguments = command_line(process.pid or 0)
    located = children.located(settings)
    environ = children.environ({"PATH": "/bin"})

    assert arguments[arguments.index("--alias") + 1] == "model-a,b"
    assert (located.backends[0].base_url, located.backends[0].api_key(environ)) == (
        process.url,
        process.api_key,
    )
    assert located.backends[1] == settings.backends[1]


def test_without_commands_there_is_nothing_to_run() -> None:
    assert list(ManagedProcesses.of(Settings(), {})) == []


@asynccontextmanager
async def slotgate_run(tmp_path: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environ = dict(os.environ) | {"XDG_STATE_HOME": str(tmp_path), "SLOTGATE_MODEL": ""}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "slotgate", "run", *arguments),
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.anyio
async def test_ctrl_c_while_the_model_loads_ends_both(tmp_path: Path, tiny_model: Path) -> None:
    child_of(tmp_path, "loading")
    arguments = (
        "--port",
        str(free_port()),
        "--llama-server",
        str(tmp_path / "llama-server"),
        str(tiny_model),
    )
    async with slotgate_run(tmp_path, *arguments) as process:
        assert process.stderr is not None
        await process.stderr.readuntil(b'"state": "loading"')
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()

    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
    assert len(children) == 1
    assert vanishes(children[0], within_s=2)


@pytest.mark.anyio
async def test_a_taken_port_ends_run_with_2(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        async with slotgate_run(tmp_path, "--port", str(port)) as process:
            out, err = await process.communicate()

    assert (process.returncode, out) == (2, b"")
    assert f"port {port}: Address already in use" in err.decode()


@pytest.mark.anyio
async def test_a_file_that_is_not_a_model_ends_run_with_2(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_text("no model")
    async with slotgate_run(tmp_path, "--port", str(free_port()), str(wrong)) as process:
        out, err = await process.communicate()

    assert (process.returncode, out) == (2, b"")
    assert "wrong.gguf is not a GGUF file" in err.decode()


@pytest.mark.real
@pytest.mark.anyio
async def test_the_curl_command_of_the_banner_streams_from_a_real_model(
    tmp_path: Path, tiny_model: Path
) -> None:
    async with slotgate_run(
        tmp_path, "--port", str(free_port()), "--parallel", "1", str(tiny_model)
    ) as process:
        assert process.stdout is not None
        text = (await process.stdout.readuntil(b"Ctrl-C")).decode()
        pasted = text[text.index("curl") : text.index("Ctrl-C")].replace(
            '"stream"', '"max_tokens":5,"stream"'
        )
        curl = await asyncio.create_subprocess_shell(pasted, stdout=-1, stderr=-1)
        answer, _ = await curl.communicate()
        process.send_signal(signal.SIGTERM)

    assert answer.count(b'"content":"') >= 5
    assert answer.endswith(b"data: [DONE]\n\n")
    assert b'"model":"tiny"' in answer


@pytest.mark.real
@pytest.mark.anyio
async def test_a_model_that_llama_server_refuses_ends_run_with_1(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(64))
    async with slotgate_run(tmp_path, "--port", str(free_port()), str(broken)) as process:
        out, err = await process.communicate()

    assert (process.returncode, out) == (1, b"")
    assert "local does not start" in err.decode()
    assert "broken.gguf" in err.decode()


@pytest.mark.real
@pytest.mark.anyio
async def test_killing_run_leaves_no_llama_server(tmp_path: Path, tiny_model: Path) -> None:
    async with slotgate_run(tmp_path, "--port", str(free_port()), str(tiny_model)) as process:
        assert process.stdout is not None
        await process.stdout.readuntil(b"Ctrl-C")
        children = children_of(process.pid)
        process.kill()
        await process.wait()

    assert len(children) == 1
    assert vanishes(children[0], within_s=2)
