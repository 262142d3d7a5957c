"""Usage records for tests, a store in memory that can stall and fail, and a PostgreSQL server.

The PostgreSQL server is the system's own (Debian: package `postgresql`). It runs in a temporary folder on a
Unix socket. If the tests run as root, it runs as another user, because it refuses to run as root.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from slotgate.gateway.usage import StoreError, UsageQuery, UsageRecord, UsageRow, UsageTotal

NOON = 1_800_000_000.0
"""2027-01-15, 08:00 UTC."""
DAY = date(2027, 1, 15)
DAY_S = 86_400.0


def record(number: int = 0, **members: Any) -> UsageRecord:  # noqa: ANN401
    plain = UsageRecord(
        ended_at=NOON,
        request_id=f"r{number}",
        tenant="a",
        key=None,
        model="m",
        backend="gpu0",
        path="/v1/chat/completions",
        prompt_tokens=10,
        cached_tokens=4,
        completion_tokens=5,
        reasoning_tokens=0,
        partial=False,
        estimated=False,
        queue_ms=2.0,
        ttft_ms=8.5,
        duration_ms=20.0,
        status=200,
        outcome="ok",
        code=None,
    )
    return plain._replace(**members)


class MemoryStore:
    """`broken` is the error that `write` raises. During `closed_gate()`, `write` does not return."""

    place = "memory"

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], UsageRecord] = {}
        self.batches: list[int] = []
        self.broken: Exception | None = None
        self.attempts = 0
        self.attempted = threading.Condition()
        self.closed = False
        self._open = threading.Event()
        self._open.set()

    @property
    def ids(self) -> list[str]:
        return [kept.request_id for kept in self.rows.values()]

    @contextmanager
    def held(self) -> Iterator[None]:
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def wait_for_attempts(self, count: int, within_s: float = 20.0) -> None:
        with self.attempted:
            assert self.attempted.wait_for(lambda: self.attempts >= count, within_s)

    def fault(self) -> str | None:
        return None

    def prepare(self) -> None:
        self._may()

    def write(self, rows: Sequence[UsageRow]) -> None:
        with self.attempted:
            self.attempts += 1
            self.attempted.notify_all()
        self._open.wait(30)
        self._may()
        self.batches.append(len(rows))
        for row in rows:
            self.rows.setdefault((row.writer, row.number), row.record)

    def close(self) -> None:
        self.closed = True

    def tokens_by_tenant(self, day: date) -> dict[str, int]:
        self._may()
        tokens: dict[str, int] = {}
        for kept in self.rows.values():
            if kept.day == day:
                used = kept.prompt_tokens + kept.completion_tokens
                tokens[kept.tenant] = tokens.get(kept.tenant, 0) + used
        return tokens

    def totals(self, question: UsageQuery, *, within_s: float | None = None) -> list[UsageTotal]:
        raise StoreError("not here")

    def _may(self) -> None:
        if self.broken is not None:
            raise self.broken


class PostgresServer:
    """A server on a Unix socket in a folder of its own. `stop` and `start` keep its data."""

    def __init__(self, programs: Path, folder: Path, user: str | None) -> None:
        self._programs = programs
        self._folder = folder
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = "slotgate"
        self.url = f"postgresql://{self._owner}:s3cret@/postgres?host={folder}"

    def create(self) -> None:
        self._run("initdb", "-D", str(self._folder / "data"), "-U", self._owner, "-A", "trust", "--no-sync")

    def start(self) -> None:
        log = (self._folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [
                    *(str(self._programs / "postgres"), "-D", str(self._folder / "data")),
                    *("-k", str(self._folder), "-c", "listen_addresses=", "-c", "fsync=off"),
                ],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._folder,
            )
        ready = [str(self._programs / "pg_isready"), "-h", str(self._folder), "-t", "1"]
        for _ in range(300):
            if subprocess.run(ready, capture_output=True, check=False).returncode == 0:
                return
            assert self._process.poll() is None, (self._folder / "log").read_text()
            threading.Event().wait(0.1)
        raise AssertionError("PostgreSQL did not become ready: " + (self._folder / "log").read_text())

    def fresh(self) -> str:
        """Create a database and return its URL."""
        name = f"t{secrets.token_hex(6)}"
        self._run("createdb", "-h", str(self._folder), "-U", self._owner, name)
        return self.url.replace("/postgres?", f"/{name}?")

    def stop(self) -> None:
        """Stop at once and end all connections. Committed data stays."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd=self._folder)


def postgres_programs() -> Path | None:
    """Return the program folder of the newest PostgreSQL that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    if found:
        return found[-1].parent
    elsewhere = shutil.which("initdb")
    return Path(elsewhere).resolve().parent if elsewhere else None


@contextmanager
def postgres_server(programs: Path) -> Iterator[PostgresServer]:
    user = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="slotgate-pg-") as name:  # a socket's path must be short
        folder = Path(name)
        if user is not None:
            shutil.chown(folder, user)
        server = PostgresServer(programs, folder, user)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
