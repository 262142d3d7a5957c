"""A child process: started through `exec_wrapper.py`, read from, ended and always reaped.

Rules: the holder of a `Child` calls `end()` in a `finally`; the kill in there does not await, so not
even a second cancellation leaves a process behind. Signals go to the child's whole process group, because
a command may be a script around the real program, and always by the pid that we started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from slotgate.gateway.processes.output import ChildOutput

__all__ = ["Child", "Exit"]

_WRAPPER: Final = Path(__file__).with_name("exec_wrapper.py")
_UNKILLABLE_S: Final = 10.0  # a driver can hold a killed process; a stop must end all the same
_LAST_WORDS_S: Final = 0.2  # for output still in the pipe; a grandchild may hold it open for ever


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a process: its exit status, or minus the signal that killed it."""

    code: int

    @property
    def is_wrong_build(self) -> bool:
        """Return True if the program uses instructions that this processor does not have."""
        return self.code == -signal.SIGILL

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit status {self.code}"
        if self.is_wrong_build:
            return "killed by SIGILL: this build is for another processor than this machine has"
        with suppress(ValueError):
            return f"killed by {signal.Signals(-self.code).name}"
        return f"killed by signal {-self.code}"


class _Pipe(asyncio.Protocol):
    """Reads as fast as the child writes, so that the child never waits for us."""

    def __init__(self, output: ChildOutput) -> None:
        self._output = output
        self.closed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._output.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._output.end()
        self.closed.set()


class Child:
    """A running process of ours. `await Child.start(…)` makes one."""

    def __init__(self, process: Process, pipe: _Pipe, transport: asyncio.ReadTransport) -> None:
        self._process = process
        self._pipe = pipe
        self._transport = transport
        self._exit = asyncio.ensure_future(self._reaped())

    def __repr__(self) -> str:
        return f"<Child {self.pid} {self.exit or 'running'}>"

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str], output: ChildOutput) -> Self:
        """Start `command`; its stdout and stderr go to `output`. Raises OSError if no process can be started.

        A program that does not exist is no such error: it ends at once with status 127 and a line of output.
        """
        starting = asyncio.ensure_future(cls._start(command, environment, output))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # half a start can not be undone, a whole one can be ended
            await asyncio.wait({starting})
            if starting.exception() is None:
                await starting.result().end(grace_s=0.0)
            raise

    @classmethod
    async def _start(
        cls, command: Sequence[str], environment: Mapping[str, str], output: ChildOutput
    ) -> Self:
        read_end, write_end = os.pipe()
        pipe = _Pipe(output)
        reader = os.fdopen(read_end, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: pipe, reader)
        try:
            process = await _spawn(command, environment, write_end)
        except OSError:
            transport.close()
            raise
        finally:
            os.close(write_end)
        return cls(process, pipe, transport)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit(self) -> Exit | None:
        """The end of the process, or None while it runs."""
        return self._exit.result() if self._exit.done() and not self._exit.cancelled() else None

    async def wait(self) -> Exit:
        """Return when it has ended, has been reaped and its last lines have been read."""
        return await asyncio.shield(self._exit)

    async def is_over_within(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for the end; return True if it has ended."""
        await asyncio.wait({self._exit}, timeout=timeout_s)
        return self._exit.done()

    async def end(self, grace_s: float) -> None:
        """Send SIGTERM, after `grace_s` SIGKILL, and return when it has been reaped. Idempotent.

        llama-server often hangs on SIGTERM while a request runs, so the second step is an ordinary one.
        `exit` is None afterwards only where the kernel itself would not let go for `_UNKILLABLE_S`.
        """
        try:
            self._signal(signal.SIGTERM)
            await self.is_over_within(grace_s)
        finally:
            self.kill()
            await self.is_over_within(_UNKILLABLE_S)

    def kill(self) -> None:
        """Send SIGKILL without waiting."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            _signal_group(self.pid, number)

    async def _reaped(self) -> Exit:
        code = await self._process.wait()
        # A script's children outlive it. Their group keeps its number until the last of them is gone.
        _signal_group(self.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._pipe.closed.wait(), _LAST_WORDS_S)
        self._transport.close()
        return Exit(code)


async def _spawn(command: Sequence[str], environment: Mapping[str, str], output: int) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_WRAPPER), str(os.getpid()), *command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment,
        start_new_session=True,
    )


def _signal_group(pid: int, number: signal.Signals) -> None:
    """Signal the session that `pid` leads. An empty session is no error."""
    with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        os.killpg(pid, number)
