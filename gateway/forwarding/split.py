"""A request with an array, asked piece by piece: each piece is an exchange of its own, with one slot.

A few workers take the pieces in order, as many as the widest backend has slots, and no more than the tenant
may have requests. So requests of others pass between the pieces, and no slot is held idle. To its tenant it
is one request: it counts once, has one line in the log, and ends as a whole.

* The first piece that fails ends the others, and its error is the answer.
* If there is no place in the queue for the first piece, the request is refused. A later piece waits until
  another one has ended. A request that has begun is sure of one place.
* Its parts draw on the budget of all buffers (`streaming/buffer_budget.py`) until the answer is whole. If the
  budget is spent, the request ends with the error `buffers_full`.
* The total time-out runs from the moment in which the first piece is sent, waits between pieces included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from slotgate.admission import Refusal, RequestInPieces
from slotgate.gateway.api.merge import MergedAnswer
from slotgate.gateway.api.split import PieceBodies
from slotgate.gateway.forwarding.eligibility import widest
from slotgate.gateway.forwarding.exchange import Exchange, Scrub
from slotgate.gateway.forwarding.fetch import AnswerRoom, BufferedReply
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.forwarding.prepared_request import PreparedRequest
from slotgate.gateway.forwarding.queueing import refusal
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.forwarding.split_entry import SplitEntry
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.errors import CapacityError, GatewayError, upstream_timeout
from slotgate.gateway.settings import TimeoutsSettings

__all__ = ["SplitExchange"]


class SplitExchange:
    def __init__(self, runtime: Runtime, timeouts: TimeoutsSettings, request: PreparedRequest) -> None:
        """Takes over the array and the body of the request, so that pieces can be freed one by one."""
        assert request.split is not None
        assert isinstance(request.entry, SplitEntry)
        split, request.split = request.split, None
        rest, request.body = b"".join(request.body), ()
        self._runtime = runtime
        self._timeouts = timeouts
        self._request = request
        self._entry = request.entry
        self._context: RequestContext = request.context
        self.tenant = request.context.tenant.name
        self._loop = asyncio.get_running_loop()
        self._bodies = PieceBodies(split, rest)
        self._merged = MergedAnswer(split.form, len(self._bodies), request.demand.width)
        self._room = AnswerRoom()
        self._pieces = RequestInPieces()
        self._demand = replace(
            request.demand,
            cost=request.demand.cost / len(self._bodies),
            request=self._pieces,
        )
        self._next = 0
        """The next piece that no worker has taken yet."""
        self._put_back: list[int] = []
        """Pieces that found no place in the queue."""
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None
        """The reason why the request ends before all pieces are answered."""
        self._running: dict[int, RequestContext] = {}
        """Piece -> its context, while it waits or runs."""
        self._total: asyncio.TimerHandle | None = None
        self._waiting = ExitStack()
        """While it is open, no piece has been sent, and the body can be given up."""

    def __repr__(self) -> str:
        under_way = self._pieces.pieces
        return f"<SplitExchange {self._entry.answered} of {len(self._bodies)} pieces, {under_way} under way>"

    async def reply(self, give_up: Callable[[GatewayError], None]) -> BufferedReply:
        """Return the merged answer. Raises `GatewayError`.

        `give_up` is called if the body has to give way to others before a piece has been sent.
        """
        self._context.queued_at = self._loop.time()
        self._waiting.enter_context(self._request.held.given_up_by(lambda refused: give_up(refusal(refused))))
        try:
            async with asyncio.TaskGroup() as self._group:
                for _ in range(min(self._at_once(), len(self._bodies))):
                    self._add_worker()
        except asyncio.CancelledError as error:
            self._failure = None
            error.__traceback__ = None  # a frame of the task group refers to the error: a cycle
            raise
        finally:
            self._group = None
            self._runtime.buffers.release(self)
            self._waiting.close()
            if self._total is not None:
                self._total.cancel()
        if self._failure is not None:
            raise self._take_failure()
        self._context.answered_at = self._loop.time()
        return BufferedReply(200, b"application/json", self._merged.whole())

    def progress(self) -> Progress:
        return self._entry.progress()

    @property
    def waits(self) -> bool:
        """True while no piece runs or is answered. It may be so again after a failed attempt of the first."""
        return not self._entry.answered and all(piece.granted_at is None for piece in self._running.values())

    def runs_on(self, backend: str) -> bool:
        """Return True if the backend of this name works for a piece."""
        return any(piece.runs_on(backend) for piece in self._running.values())

    # -- workers

    def _at_once(self) -> int:
        """Return the number of pieces that may wait or run at once.

        It is asked again after every piece, because a backend states its slots once it is loaded. A slot that
        the client names can serve one piece at a time.
        """
        demand = self._request.demand
        model = self._runtime.fleet.catalogue.models.get(demand.model)
        slots = widest(model.backends) if model is not None else 0
        most = self._runtime.concurrency.max_concurrent.get(demand.tenant, slots)
        return 1 if self._request.names_slot else max(1, min(slots // demand.width, most))

    def _add_worker(self) -> None:
        assert self._group is not None
        self._pieces.pieces += 1
        task = self._group.create_task(self._work(), name="pieces")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        """Ask for pieces until none is left."""
        try:
            while self._failure is None and (position := self._take()) is not None:
                if not await self._ask(position):
                    break
                if self._may_add_worker():
                    self._add_worker()
        except asyncio.CancelledError as error:
            error.__traceback__ = None  # the task keeps the error, and frames of `fetch` refer to the task
            raise
        except Exception as error:
            self._fail(error)
        finally:
            self._pieces.pieces -= 1

    def _may_add_worker(self) -> bool:
        """Return True if there is work for another worker, and the request is not about to end."""
        task = asyncio.current_task()
        assert task is not None
        pieces = len(self._put_back) + len(self._bodies) - self._next
        return pieces > 0 and self._pieces.pieces < self._at_once() and not task.cancelling()

    def _take(self) -> int | None:
        """Return the next piece, or None if all have been taken."""
        if self._put_back:
            return self._put_back.pop()
        if self._next == len(self._bodies):
            return None
        self._next += 1
        return self._next - 1

    async def _ask(self, position: int) -> bool:
        """Ask for a piece and take over its answer. Return False if there was no place in the queue for it.

        Raises `GatewayError` if the request fails with this piece.
        """
        while True:
            try:
                await self._exchange(position)
            except CapacityError as error:
                if error.code != Refusal.QUEUE_FULL.value or self._is_refused_as_a_whole():
                    raise
                if self._pieces.pieces > 1:
                    self._put_back.append(position)
                    return False
            else:
                return True

    def _is_refused_as_a_whole(self) -> bool:
        """Return True if no piece has got a place, now that one was refused."""
        return self._context.asked_at is None and (self._next == 1 or self._pieces.pieces == 1)

    async def _exchange(self, position: int) -> None:
        """Ask for a piece once, take over its answer and book what it used. Raises `GatewayError`."""
        request = self._piece(position)
        entry, context = request.entry, request.context
        self._running[position] = context
        failure: Exception | None = None
        exchange = Exchange(
            self._runtime,
            self._timeouts,
            request,
            room=self._room,
            on_asked=partial(self._asked, context),
        )
        try:
            said = await exchange.read(partial(_interpreted, request))
            self._merged.add(position, said)
            self._runtime.buffers.hold(self, self._merged.size)
            self._bodies.let_go(position)
        except GatewayError as error:
            failure = error
            raise
        finally:
            failure = failure or self._failure
            self._entry.end(entry, failure if isinstance(failure, GatewayError) else None)
            del self._running[position]
            del failure  # its traceback holds this frame

    def _piece(self, position: int) -> PreparedRequest:
        """Return the request for one piece."""
        body, size = self._bodies.piece(position)
        sizes, model, tokens = self._runtime.prompt_sizes, self._demand.model, self._demand.tokens
        if self._request.shares_context:
            tokens += sizes.at_most(model, size)
        demand = replace(self._demand, body_bytes=sum(map(len, body)), tokens=tokens)
        return replace(
            self._request,
            context=RequestContext(self._context.id, self._context.began_at),
            body=body,
            demand=demand,
            entry=self._entry.begin(demand.width, size, sizes.expected(model, size)),
        )

    def _asked(self, piece: RequestContext) -> None:
        """A piece is being sent. The times of the first one stand for the request."""
        context = self._context
        if context.asked_at is None:
            self._pieces.begun = True
            self._waiting.close()
            context.granted_at, context.asked_at = piece.granted_at, piece.asked_at
            context.backend = piece.backend
            self._total = self._loop.call_later(
                self._timeouts.total_s, self._fail, upstream_timeout("total_timeout")
            )

    # -- the end

    @property
    def stalled(self) -> bool:
        """Always True: no client can read the parts yet, so only the end of the request frees them."""
        return True

    def cancel(self) -> None:
        """End the request, because all buffers together hold too much."""
        message = "the answers that the gateway keeps in memory take too much, and this one is the largest"
        self._fail(CapacityError(503, "buffers_full", message, retry_after_s=5.0))

    def _fail(self, error: Exception) -> None:
        """End all pieces that wait or run. The first reason counts."""
        if self._failure is None:
            self._failure = error
            for task in self._tasks - {asyncio.current_task(self._loop)}:
                task.cancel()

    def _take_failure(self) -> Exception:
        """Return the reason and forget it: its traceback is going to hold this object."""
        error, self._failure = self._failure, None
        assert error is not None
        return error


def _interpreted(request: PreparedRequest, reply: BufferedReply, scrub: Scrub) -> dict[str, Any] | list[Any]:
    return reply.parsed(
        request.identity,
        request.endpoint.stamp,
        scrub,
        token_usage=request.entry.usage,
        withheld=request.options.withheld,
    )
