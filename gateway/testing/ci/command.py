"""Runs the test command of a CI run beside the gateway.

`guard.py` ties it to this process: if this process is killed, the command is killed with all processes that
it has started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from slotgate.gateway.testing.ci import guard

__all__ = ["environment_for", "run_command"]

_GRACE_S: Final = 5.0
_GUARD_S: Final = 3.0


def environment_for(environ: Mapping[str, str], url: str, key: str) -> dict[str, str]:
    """Return the environment of the command, with the variables that official clients read."""
    return {
        **environ,
        "SLOTGATE_URL": url,
        "SLOTGATE_KEY": key,
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
    }


async def run_command(command: Sequence[str], environ: Mapping[str, str], stop: asyncio.Event) -> int:
    """Run the command and return its exit code as a shell does. Setting `stop` ends it by TERM, then KILL."""
    wrapper = (sys.executable, "-I", "-S", str(Path(guard.__file__)), str(os.getpid()))
    process = await asyncio.create_subprocess_exec(
        *wrapper, *command, env=dict(environ), start_new_session=True
    )
    ending = asyncio.ensure_future(process.wait())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            _signal(process.pid, signal.SIGTERM)
            await asyncio.wait({ending}, timeout=_GRACE_S)
    finally:
        stopping.cancel()
        if not ending.done():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGUSR1)  # the guard ends the command's processes
            await asyncio.wait({ending}, timeout=_GUARD_S)
        _signal(process.pid, signal.SIGKILL)
        code = await ending
    return code if code >= 0 else 128 - code


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
