"""The gateway's process as a test run sees it: started once, asked things, gone at the end.

It ends with the process that started it, however that ends (`--with-parent`); its files are in a folder that
goes with it. Talking to it needs no thread and no event loop here.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["ControlError", "GatewayProcess"]

_START_S: Final = 20.0
_STOP_S: Final = 5.0
_LOOK_S: Final = 0.005
_SLACK_S: Final = 10.0


class ControlError(AssertionError):
    """The gateway's process could not do what the test asked for, in its own words."""


class GatewayProcess:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="slotgate-")
        folder = Path(self._folder.name)
        self._ready = folder / "ready.json"
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.told: dict[str, Any] = {}
        """URL, keys and control port, as the ready file has them."""
        self.started_s = 0.0
        """How long it took to be ready."""

    def __repr__(self) -> str:
        return f"<GatewayProcess {self.told.get('url')}>"

    def __enter__(self) -> Self:
        began = time.perf_counter()
        # -P: a folder of the user's that happens to be called `gateway` is not ours
        command = [sys.executable, "-P", "-m", "gateway", "ci", "--control", "--with-parent", "--verbose"]
        command += ["--max-s", str(24 * 3600), "--ready", str(self._ready)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while not self._ready.exists():
                if self._process.poll() is not None or time.perf_counter() - began > _START_S:
                    raise ControlError(f"slotgate does not start:\n{self.log}")
                time.sleep(_LOOK_S)
            self.told = json.loads(self._ready.read_text())
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
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """Idempotent."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()

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
