"""Runs `slotgate serve` as a process, as a user does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.client import RawClient
from tests.support.standstill import Standstill
from tests.support.standstill import __file__ as standstill_program

READY_WITHIN_S = 30.0


class Served:
    def __init__(self, url: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.url = url
        self.process = process
        self.log = log

    async def ready(self) -> None:
        """Wait until a backend is ready."""
        async with asyncio.timeout(READY_WITHIN_S):
            while not await self._answers_ready():
                assert self.process.returncode is None, self.log.read_text()
                await asyncio.sleep(0.02)

    async def client(self, **options: int) -> RawClient:
        return await RawClient.connect(self.url, **options)

    async def says(self, text: str, within: float = 2.0) -> None:
        """Wait until the log contains the text."""
        async with asyncio.timeout(within):
            while text not in self.log.read_text():
                await asyncio.sleep(0.01)

    def complaints(self) -> list[str]:
        """Lines of the log from WARNING on, and lines that are not JSON, such as tracebacks."""
        lines = self.log.read_text().splitlines()
        return [line for line in lines if not line.startswith("{") or '"level": "info"' not in line]

    async def exit_code(self, within: float = 15.0) -> int:
        """Wait until the process ends by itself, and return its exit code."""
        async with asyncio.timeout(within):
            return await self.process.wait()

    async def _answers_ready(self) -> bool:
        with contextlib.suppress(OSError):
            async with await RawClient.connect(self.url) as client:
                return int((await client.request("GET", "/ready")).start_line.split()[1]) == 200
        return False

    async def stop(self, sign: signal.Signals = signal.SIGTERM, within: float = 15.0) -> int:
        """Stop the process and return its exit code. Raises an error if it must be killed."""
        if self.process.returncode is None:
            self.process.send_signal(sign)
        try:
            async with asyncio.timeout(within):
                return await self.process.wait()
        except TimeoutError as error:
            self.process.kill()
            await self.process.wait()
            raise AssertionError(f"did not exit within {within} s: {self.log.read_text()}") from error


@asynccontextmanager
async def served_gateway(
    folder: Path,
    configuration: str,
    *,
    standstill: Standstill | None = None,
    confined_by: Sequence[str] = (),
) -> AsyncIterator[Served]:
    """Run a gateway with this configuration. The port is chosen here.

    `standstill` watches its event loop. `confined_by` is a command that takes rights away and then runs the
    gateway in its own place.
    """
    tomllib.loads(configuration)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = folder / "slotgate.toml"
    path.write_text(configuration)
    log = folder / "slotgate.log"
    environ = {**os.environ, "SLOTGATE_SERVER__PORT": str(port)}
    command = [sys.executable, "-m", "slotgate", "serve", "--config", str(path)]
    if standstill is not None:
        command = [sys.executable, standstill_program, str(path), str(standstill.notes)]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *confined_by, *command, stdout=output, stderr=output, env=environ, cwd=folder
        )
    served = Served(f"http://127.0.0.1:{port}", process, log)
    try:
        await served.ready()
        yield served
    finally:
        await served.stop()


def backend_table(url: str, *, name: str = "gpu0", model: str = "m") -> str:
    return f'[[backend]]\nname = "{name}"\nurl = "{url}"\nmodels = ["{model}"]\n'
