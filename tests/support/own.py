"""Configurations with llama-servers that the gateway starts, and functions to inspect them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.settings import Settings, parse
from slotgate.gateway.tools.run.packages import Installed
from tests.support.answer import WholeResponse, fetch
from tests.support.fixtures import need_the_wheel
from tests.support.leaks import child_processes
from tests.support.processes import command_line

OPERATOR = b"authorization: Bearer sg-operator"
SERVER = {"port": 0, "operator_key_hashes": [hash_key("sg-operator")]}


def llama_command(model: Path, *arguments: str, slots: int = 1, before: str = "") -> list[str]:
    """Write a script that runs a real llama-server. `before` is a line of shell that runs first."""
    need_the_wheel()
    found = Installed().server({})
    assert found is not None
    command = [str(found[0]), "-m", str(model), "-t", "1", "-c", str(16384 * slots), "-np", str(slots)]
    command += ["--no-webui", "--no-warmup", *arguments]
    return ["sh", "-c", f'{before}\nexec "$0" "$@"', *command] if before else command


def own_backend(name: str, command: list[str], **rest: object) -> dict[str, Any]:
    """Return a backend that serves a model of the same name."""
    return {"name": name, "command": command, "models": [name], "health_interval_s": 0.2, **rest}


def own_settings(
    *backends: dict[str, Any],
    max_loaded: int = 0,
    residence_s: float = 10.0,
    **sections: Any,  # noqa: ANN401
) -> Settings:
    """Return the configuration. With `max_loaded`, all backends are in one group, and none lingers."""
    times = {"residence_s": residence_s, "linger_s": 0.0}
    group = {"group": [{"name": "gpu", "max_loaded": max_loaded, **times}]} if max_loaded else {}
    entries = [{**backend, **({"group": "gpu"} if max_loaded else {})} for backend in backends]
    return parse({"server": SERVER, "backend": entries} | group | sections, {})


async def order(url: str, name: str, word: str) -> WholeResponse:
    return await fetch(url, "POST", f"/admin/backends/{name}/{word}", OPERATOR)


async def shown(url: str) -> dict[str, Any]:
    """Return the states of all backends, as `/ready` shows them."""
    entries = (await fetch(url, "GET", "/ready")).json["backends"]
    return {entry["name"]: entry["state"] for entry in entries}


def llamas() -> list[int]:
    """Return the running children of this process that are backends of the gateway.

    The gateway gives them a port, whereas the llama-servers of fixtures choose their own.
    """
    return [pid for pid in child_processes() if _port(command_line(pid)) not in ("", "0")]


def _port(words: list[str]) -> str:
    return words[words.index("--port") + 1] if "--port" in words[:-1] else ""
