"""A model of llama-server on virtual time: those rules for busy slots on which the quarantine depends.

* A request takes its slot when its body is parsed, up to 0.5 s and 0.1 s a MiB after the last byte, whether
  its client is there still or not. Without a free slot it is deferred: that must never happen.
* A stream says headers when it has its slot; any other answer says nothing before its end.
* A stream that decodes notices a closed connection at its next write. Everything else looks for it after one
  second without a result in the whole server; the slot is idle at the next batch boundary then.
* A request of several tasks (choices, prompts) takes a slot for each; those that find none wait for a slot of
  their own request. That is no deferral of another's work.
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
        """Requests that came when no slot was free."""
        self.kept_alive_s = 0.0
        """The longest that closed work went on without any result but the gateway's own questions."""
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._result: asyncio.Future[None] = self._loop.create_future()
        self._freed = asyncio.Event()
        self._last_work_at = 0.0

    async def serve(self, work: ModelledWork, connection: ModelledConnection) -> None:
        """A request from its last byte to its end, or until its connection is found closed."""
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
        """One slot's part of a request: task after task, until none is left or nobody wants them."""
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
        """`GET /slots`, answered after so long."""
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
        """Return when the connection is found closed: asked after a second in which nobody had a result."""
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
