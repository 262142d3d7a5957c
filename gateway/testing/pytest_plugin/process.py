"""The gateway's process as a test run sees it: started once, asked things, gone at the end.

It ends with the process that started it, however that ends (`--with-parent`), and has no file with a name.
Talking to it needs no thread and no event loop here.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["ControlError", "GatewayProcess"]

_START_S: Final = 20.0
_STOP_S: Final = 5.0
_SLACK_S: Final = 10.0


class ControlError(AssertionError):
    """The gateway's process could not do what the test asked for, in its own words."""


class GatewayProcess:
    def __init__(self) -> None:
        # Without a name: nothing to be left behind. It is closed in `close`.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None
        self.told: dict[str, Any] = {}
        """URL, keys and control port, in its own words."""
        self.started_s = 0.0
        """How long it took to be ready."""

    def __repr__(self) -> str:
        return f"<GatewayProcess {self.told.get('url')}>"

    def __enter__(self) -> Self:
        began = time.perf_counter()
        # -P: a folder of the user's that happens to be called `gateway` is not ours
        command = [sys.executable, "-P", "-m", "slotgate", "ci", "--control", "--with-parent", "--verbose"]
        command += ["--max-s", str(24 * 3600)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log
        )
        try:
            self.told = json.loads(self._first_line())
        except BaseException:
            self.close()
            raise
        self.started_s = time.perf_counter() - began
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has written, one JSON line a request."""
        descriptor = self._log.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def close(self) -> None:
        """Idempotent."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        self._log.close()

    def _first_line(self) -> bytes:
        """It comes when all is ready. Raises `ControlError`."""
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _START_S)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise ControlError(f"slotgate does not start:\n{self.log}")
        return line

    def ask(self, path: str, within: float = 5.0, **said: object) -> dict[str, Any]:
        """Raises `ControlError`. `within` is how long the other side may wait for what is asked."""
        control = self.told["control"]
        connection = http.client.HTTPConnection("127.0.0.1", control["port"], timeout=within + _SLACK_S)
        headers = {"x-slotgate-control": control["token"], "Connection": "close"}
        try:
            connection.request("POST", path, json.dumps({**said, "within": within}), headers)
            answer = connection.getresponse()
            told: dict[str, Any] = json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(f"slotgate does not answer: {error}\n{self.log[-2000:]}") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise ControlError(told.get("fault", "unknown"))
        return told
