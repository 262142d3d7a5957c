"""A model of llama-server on virtual time. It has the rules for busy slots on which the quarantine depends.

* A request takes its slot when its body has been parsed, up to 0.5 s and 0.1 s a MiB after the last byte,
  even if its client has left. Without a free slot it is deferred, which must never happen.
* A stream sends its headers when it has its slot. Any other answer sends nothing before its end.
* A stream that decodes notices a closed connection at its next write. All other requests look for it after
  one second without a result in the whole server. The slot is then idle at the next batch boundary.
* A request of several tasks (choices, prompts) takes a slot for each. A task that finds no slot waits for a
  slot of its own request, which does not defer other requests.
* Results are frames of any stream, ends of any request, and answers to `/slots`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

NOTICE_S = 1.0


@dataclass(frozen=True, slots=True)
class ModelledWork:
    """The work with which one request keeps slots busy."""

    tasks: int = 1
    stream: bool = True
    body_mib: int = 0
    parsing: float = 0.0
    """The slowness of parsing its body, from 0 (at once) to 1 (as slowly as possible)."""
    prefill_s: float = 1.0
    tokens: int = 10
    gap_s: float = 0.02

    @property
    def parsing_s(self) -> float:
        return self.parsing * (0.5 + 0.1 * self.body_mib)


class ModelledConnection:
    """The connection of one request, with the gateway's callbacks."""

    def __init__(self, on_headers: Callable[[], None], on_event: Callable[[], None]) -> None:
        self.on_headers = on_headers
        self.on_event = on_event
        self.closed_at: float | None = None

    def close(self) -> None:
        self.closed_at = asyncio.get_running_loop().time()


class LlamaModel:
    def __init__(self, slots: int, *, batch_s: float = 0.05) -> None:
        self.slots = slots
        self.batch_s = batch_s
        self.running: set[int] = set()
        self.deferred = 0
        """The number of times that a request found no free slot."""
        self.kept_alive_s = 0.0
        """The longest time that closed work went on with no result but the answers to probes."""
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._result: asyncio.Future[None] = self._loop.create_future()
        self._freed = asyncio.Event()
        self._last_work_at = 0.0

    async def serve(self, work: ModelledWork, connection: ModelledConnection) -> None:
        """Serve a request from its last byte to its end, or until its connection is found closed."""
        await asyncio.sleep(work.parsing_s)
        watcher = asyncio.create_task(self._notice(connection))
        left = iter(range(work.tasks))
        workers = [
            self._work_off(left, work, connection, watcher) for _ in range(min(work.tasks, self.slots))
        ]
        await asyncio.gather(*workers)
        watcher.cancel()

    async def _work_off(
        self,
        left: Iterator[int],
        work: ModelledWork,
        connection: ModelledConnection,
        watcher: asyncio.Task[None],
    ) -> None:
        """Run the tasks of a request in one slot until none is left, or until its closed connection is
        noticed.
        """
        while len(self.running) >= self.slots:
            self.deferred += 1
            self._freed.clear()
            await self._freed.wait()
        for _ in left:
            number = next(self._numbers)
            self.running.add(number)
            began_at = self._loop.time()
            if work.stream:
                connection.on_headers()
            finished = await self._compute(work, connection, watcher)
            self.running.discard(number)
            if connection.closed_at is not None:
                alone_since = max(connection.closed_at, began_at, self._last_work_at)
                self.kept_alive_s = max(self.kept_alive_s, self._loop.time() - alone_since)
            self._had_result()
            self._last_work_at = self._loop.time()
            if not finished:
                break
        self._freed.set()

    async def answer_slots(self, after_s: float) -> frozenset[int]:
        """Answer `GET /slots` after this time with the running tasks."""
        await asyncio.sleep(after_s)
        self._had_result()
        return frozenset(self.running)

    async def _compute(
        self, work: ModelledWork, connection: ModelledConnection, watcher: asyncio.Task[None]
    ) -> bool:
        end = self._loop.time() + work.prefill_s
        while self._loop.time() < end:
            await asyncio.sleep(min(self.batch_s, end - self._loop.time()))
            if watcher.done():
                return False
        for _ in range(work.tokens):
            await asyncio.sleep(work.gap_s)
            if watcher.done() or (work.stream and connection.closed_at is not None):
                return False
            if work.stream:
                connection.on_event()
                self._had_result()
                self._last_work_at = self._loop.time()
        return True

    async def _notice(self, connection: ModelledConnection) -> None:
        """Return when the connection is found closed. It is looked at after a second without any result."""
        while True:
            try:
                async with asyncio.timeout(NOTICE_S):
                    await asyncio.shield(self._result)
            except TimeoutError:
                if connection.closed_at is not None:
                    return

    def _had_result(self) -> None:
        if not self._result.done():
            self._result.set_result(None)
        self._result = self._loop.create_future()
