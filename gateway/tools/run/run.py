"""`slotgate run`: runs a llama-server with a gateway in front of it, without a configuration file.

It finds the parts, makes the settings, and calls `serve`. stdout gets only the banner; progress and errors go
to stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TextIO

from slotgate.gateway.app.serve import ServeHooks, serve
from slotgate.gateway.processes.llama_process import LlamaProcess
from slotgate.gateway.processes.managed_processes import ManagedProcesses
from slotgate.gateway.processes.ports import cannot_listen, next_free_port
from slotgate.gateway.processes.state import LlamaStartError
from slotgate.gateway.tools.run.find import NotFoundError
from slotgate.gateway.tools.run.kept_keys import load_or_make_keys, state_dir
from slotgate.gateway.tools.run.output import LoadProgress, banner
from slotgate.gateway.tools.run.packages import Installed
from slotgate.gateway.tools.run.plan import LOAD_TIMEOUT_S, RunOptions, RunPlan, prepare

__all__ = ["loaded", "port_fault", "run"]

FAILED: Final = 1
USAGE_ERROR: Final = 2
INTERRUPTED: Final = 130

_ATTEMPTS: Final = 2  # a second, because another process may take the port before the first
_TICK_S: Final = 1.0


def run(options: RunOptions, environ: Mapping[str, str] = os.environ) -> int:
    """Run until a signal comes. Return the exit code. Raises `KeysError` and `SettingsError`."""
    if fault := port_fault(options.host, options.port):
        return _say(fault, USAGE_ERROR)
    try:
        plan = prepare(options, environ, Path.cwd(), Installed())
    except NotFoundError as missing:
        return _say(str(missing), USAGE_ERROR)
    state = state_dir(environ)
    keys = load_or_make_keys(state)
    process = LlamaProcess(plan.command, environ)

    hooks = ServeHooks(
        started=lambda: loaded(process, plan, sys.stderr),
        listening=lambda: print(banner(plan, keys), flush=True),
    )
    try:
        return serve(plan.settings(keys, state), ManagedProcesses([process]), hooks)
    except LlamaStartError as failed:
        return _say(str(failed), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED


def port_fault(host: str, port: int) -> str | None:
    """Return None if the address can be listened on, else the reason and a port that is free."""
    error = cannot_listen(host, port)
    if error is None:
        return None
    fault = f"cannot listen on {host}, port {port}: {error.strerror}"
    other = next_free_port(host, port)
    return fault if other is None else f"{fault}\nAnother port: --port {other} (make run PORT={other})"


async def loaded(process: LlamaProcess, plan: RunPlan, stream: TextIO) -> None:
    """Wait until the model is loaded, and show progress. Raises `LlamaStartError`."""
    print(f"llama-server: {plan.server.path} ({plan.server.origin})", file=stream)
    print(f"model: {plan.model.path} ({plan.model.origin})", file=stream)
    progress = LoadProgress(stream)
    progress.begin(f"loading {plan.alias}, {_size(plan.model.size_bytes)}")
    waiting = asyncio.ensure_future(process.wait_ready(LOAD_TIMEOUT_S, attempts=_ATTEMPTS))
    try:
        while not (await asyncio.wait({waiting}, timeout=_TICK_S))[0]:
            progress.tick()
        waiting.result()
    finally:
        waiting.cancel()
    progress.end("loaded")


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"


def _say(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code
