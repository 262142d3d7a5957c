"""The gateway's process: started once for a test run, controlled over HTTP, stopped at the end.

It ends when the test run ends, even if that is killed (`--with-parent`), and leaves no file behind. The calls
block and need neither a thread nor an event loop in the test.
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
    """The gateway's process could not do what the test asked for. The text is its reason."""


class GatewayProcess:
    """A `slotgate ci` process with its control interface."""

    def __init__(self) -> None:
        # A file without a name cannot be left behind. `close` closes it.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None
        self.facts: dict[str, Any] = {}
        """The members that the process printed: URL, keys, models and control port."""
        self.started_s = 0.0
        """Seconds until the process was ready."""

    def __repr__(self) -> str:
        return f"<GatewayProcess {self.facts.get('url')}>"

    def __enter__(self) -> Self:
        began = time.perf_counter()
        # -P keeps the working directory off sys.path, where a folder might shadow slotgate
        command = [sys.executable, "-P", "-m", "slotgate", "ci", "--control", "--with-parent", "--verbose"]
        command += ["--max-s", str(24 * 3600)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log
        )
        try:
            self.facts = json.loads(self._first_line())
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
        """The log of the gateway, with one JSON line a request."""
        descriptor = self._log.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def close(self) -> None:
        """Stop the process. Idempotent."""
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
        """Return the line that the process prints when it is ready. Raises `ControlError`."""
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _START_S)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise ControlError(f"slotgate does not start:\n{self.log}")
        return line

    def ask(self, path: str, within: float = 5.0, **said: object) -> dict[str, Any]:
        """Call an action. `within` limits the time for which it may wait. Raises `ControlError`."""
        control = self.facts["control"]
        connection = http.client.HTTPConnection("127.0.0.1", control["port"], timeout=within + _SLACK_S)
        headers = {"x-slotgate-control": control["token"], "Connection": "close"}
        try:
            connection.request("POST", path, json.dumps({**said, "within": within}), headers)
            answer = connection.getresponse()
            result: dict[str, Any] = json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(f"slotgate does not answer: {error}\n{self.log[-2000:]}") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise ControlError(result.get("fault", "unknown"))
        return result
