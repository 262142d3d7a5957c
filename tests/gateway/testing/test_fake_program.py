"""`slotgate fake` as a process, and as the command of a gateway's backend."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.settings import parse
from tests.support.answer import fetch
from tests.support.client import read_stream
from tests.support.gateway import CHAT, chat, running_gateway, text_of

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "slotgate", "fake"]


def started(folder: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start `slotgate fake`. Yields the process and its URL."""
    ready = folder / "ready.json"
    process = subprocess.Popen([*COMMAND, "--ready", str(ready), *arguments], stdout=subprocess.PIPE)
    end = time.monotonic() + 30
    while not ready.exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    return process, json.loads(ready.read_text())["url"]


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_fake_prints_its_url_and_ends_at_a_signal(tmp_path: Path, sign: signal.Signals) -> None:
    process, url = started(tmp_path, "--parallel", "3", "--alias", "mine")
    with process:
        assert process.stdout is not None
        said = process.stdout.readline().decode()
        process.send_signal(sign)
        assert process.wait(10) == 0
    assert said.startswith(f"a scripted llama-server with 3 slots is listening on {url}: mine")
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_script_and_a_taken_port_exit_with_2(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text("[[reply]]\ntxt = 1\n")
    done = subprocess.run([*COMMAND, "--script", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "reply 1.txt: unknown\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run([*COMMAND, "--port", port], capture_output=True, text=True, check=False)
    assert (done.returncode, f"cannot listen on 127.0.0.1, port {port}" in done.stderr) == (2, True)


@pytest.mark.anyio
async def test_a_gateway_loads_fake_on_demand(tmp_path: Path) -> None:
    """The gateway gives it host, port, alias and key."""
    script = tmp_path / "script.toml"
    script.write_text('[server]\nload_s = 0.3\n[default]\ntext = "Loaded."\n')
    backend = {
        "name": "own",
        "command": [*COMMAND, "--script", str(script)],
        "models": ["m"],
        "load": "demand",
    }
    operator = [hash_key("sg-operator")]
    settings = parse({"server": {"port": 0, "operator_key_hashes": operator}, "backend": [backend]}, {})
    settings = settings.model_copy(update={"usage": settings.usage.model_copy(update={"store": "none"})})
    async with running_gateway(settings) as gateway:
        assert text_of(await read_stream(gateway.url, CHAT, chat(model="m"), within=30)) == "Loaded."
        ready = await fetch(gateway.url, "GET", "/ready")
        assert ready.json["backends"][0]["state"] == "ready"
