"""`slotgate serve` for tests with a browser: a process that can be stopped and started again.

These tests are not coroutines, because Playwright's event loop needs the thread.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import orjson

from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.processes.ports import free_port
from tests.support.gateway import CHAT, chat

OPERATOR_KEY = "sg-operator"
TENANTS = ("team-a", "team-b")
READY_WITHIN_S = 30.0


class Operated:
    """A gateway in front of the llama-server at `url`."""

    def __init__(self, folder: Path, url: str, model: str = "m") -> None:
        self.model = model
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "slotgate.log"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        tenants = "".join(
            f'[[tenant]]\nname = "{name}"\nkey_hashes = ["{hash_key(f"sg-{name}")}"]\n' for name in TENANTS
        )
        (folder / "slotgate.toml").write_text(
            f'[server]\nport = {self.port}\noperator_key_hashes = ["{hash_key(OPERATOR_KEY)}"]\n'
            f'shutdown_grace_s = 1\n[usage]\nstore = "none"\n{tenants}'
            f'[[backend]]\nname = "gpu0"\nurl = "{url}"\nmodels = ["{model}"]\nhealth_interval_s = 0.2\n'
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process, and return when a backend is ready."""
        command = [sys.executable, "-m", "slotgate", "serve", "--config", "slotgate.toml"]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=dict(os.environ), stdout=output, stderr=output
            )
        ready = threading.Event()
        timer = threading.Timer(READY_WITHIN_S, ready.set)
        timer.start()
        try:
            while not self._answers_ready():
                assert not ready.wait(0.05), self.log.read_text()
                assert self._process.poll() is None, self.log.read_text()
        finally:
            timer.cancel()

    def stop(self) -> None:
        """Send TERM, and KILL if the process does not end."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def ask(self, method: str, path: str, *, key: str = OPERATOR_KEY, body: object = None) -> dict[str, Any]:
        """Send a request beside those of the browser, and return its answer."""
        connection = self._connection()
        try:
            content: dict[str, Any] = orjson.loads(_sent(connection, method, path, key, body).read())
            return content
        finally:
            connection.close()

    def stream(self, tenant: str, text: str, **members: object) -> HeldStream:
        """Run a tenant's chat, which a thread reads in the background."""
        connection = self._connection()
        body = chat(text, model=self.model) | members
        return HeldStream(connection, _sent(connection, "POST", CHAT, f"sg-{tenant}", body))

    @contextmanager
    def unread(self, tenant: str, text: str) -> Iterator[None]:
        """Run a chat whose client leaves at the end of the block without reading."""
        connection = self._connection()
        headers = {"Authorization": f"Bearer sg-{tenant}", "Content-Type": "application/json"}
        connection.request("POST", CHAT, orjson.dumps(chat(text, model=self.model)), headers)
        try:
            yield
        finally:
            connection.close()

    def begin(self, tenant: str, text: str, **members: object) -> threading.Thread:
        """Run a chat that may wait in the queue. Its thread ends with the answer."""

        def run() -> None:
            with self.stream(tenant, text, **members) as stream:
                stream.rest()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)

    def _answers_ready(self) -> bool:
        connection = self._connection()
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


class HeldStream:
    """A stream on a connection that is closed at the end of the block."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self.id = response.headers["x-request-id"]
        self._connection = connection
        self._response = response

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._response.close()
        self._connection.close()

    def rest(self) -> str:
        return self._response.read().decode()


def _sent(
    connection: http.client.HTTPConnection, method: str, path: str, key: str, body: object
) -> http.client.HTTPResponse:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request(method, path, orjson.dumps(body) if body is not None else None, headers)
    return connection.getresponse()
