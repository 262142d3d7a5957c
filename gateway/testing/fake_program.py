"""`slotgate fake`: the scripted llama-server as a process.

It prints one line on stdout when it listens. SIGTERM and SIGINT end it with exit code 0. It takes the
arguments and the environment with which a gateway starts a llama-server, so it can be a backend's command.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slotgate.gateway.server.signals import stop_signals
from slotgate.gateway.testing.fake.script.reader import read_script
from slotgate.gateway.testing.fake.script.scene import Scene
from slotgate.gateway.testing.fake.server import LOOPBACK, FakeServer
from slotgate.gateway.testing.ready_file import ReadyFile

__all__ = ["FakeOptions", "run_fake", "scene_for"]

CANNOT_LISTEN = 2


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """The options of `slotgate fake`."""

    script: Path | None = None
    host: str = LOOPBACK
    port: int = 0
    ready: Path | None = None
    alias: str | None = None
    slots: int | None = None
    seed: int | None = None


def run_fake(options: FakeOptions, environ: Mapping[str, str]) -> int:
    """Run until a signal comes. Return the exit code. Raises `ScriptError`."""
    return asyncio.run(_serve(options, scene_for(options, environ)))


def scene_for(options: FakeOptions, environ: Mapping[str, str]) -> Scene:
    """Return the script, changed by the options of the command line. Raises `ScriptError`."""
    scene = read_script(options.script) if options.script else built_in()
    given = {
        "model": options.alias,
        "slots": options.slots,
        "seed": options.seed,
        "api_key": environ.get("LLAMA_API_KEY"),
    }
    changes = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(scene, machine=dataclasses.replace(scene.machine, **changes))  # type: ignore[arg-type]


def built_in() -> Scene:
    """Return the script for a run without `--script`: an example with a model for each fault."""
    return read_script(Path(__file__).with_name("built_in.toml"))


async def _serve(options: FakeOptions, scene: Scene) -> int:
    with ReadyFile(options.ready) as ready, stop_signals() as stop:
        server = FakeServer(scene, host=options.host, port=options.port)
        try:
            await server.listen()
        except OSError as error:
            print(f"cannot listen on {options.host}, port {options.port}: {error.strerror}", file=sys.stderr)
            return CANNOT_LISTEN
        try:
            ready.write({"url": server.url, "models": scene.models})
            print(_banner(server), flush=True)
            await stop.wait()
        finally:
            await server.close()
    return 0


def _banner(server: FakeServer) -> str:
    scene = server.llama.scene
    slots = f"{scene.machine.slots} slot{'s' if scene.machine.slots > 1 else ''}"
    return f"a scripted llama-server with {slots} is listening on {server.url}: {', '.join(scene.models)}"
