"""An exchange with a backend whose answer is read whole, from a place in the queue to the end of the answer.

The lease is released as soon as the answer has been read: as finished or refused if the upstream's message is
complete, else as abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from slotgate.admission import Lease, Outcome
from slotgate.gateway.forwarding.attempts import with_retry
from slotgate.gateway.forwarding.fetch import AnswerRoom, BufferedReply, fetch
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.forwarding.place import Place
from slotgate.gateway.forwarding.prepared_request import PreparedRequest
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.http.errors import GatewayError
from slotgate.gateway.settings import TimeoutsSettings

__all__ = ["Exchange", "Scrub"]

T = TypeVar("T")
Scrub = Callable[[bytes], bytes]


class Exchange:
    def __init__(
        self,
        runtime: Runtime,
        timeouts: TimeoutsSettings,
        request: PreparedRequest,
        *,
        room: AnswerRoom | None = None,
        on_asked: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_asked` is called when a lease has been granted and the backend is about to be asked."""
        self._runtime = runtime
        self._timeouts = timeouts
        self._request = request
        self._give_up: Callable[[GatewayError], None] | None = None
        self._room = room
        self._on_asked = on_asked
        self._place = Place(runtime, request, asyncio.get_running_loop().time)

    async def reply(self, give_up: Callable[[GatewayError], None]) -> BufferedReply:
        """Return the answer for the client. Raises `GatewayError`.

        `give_up` is called if the body has to give way to others while the request waits.
        """
        self._give_up, request = give_up, self._request

        def rewritten(reply: BufferedReply, scrub: Scrub) -> BufferedReply:
            return reply.rewritten(
                request.identity,
                request.endpoint.stamp,
                scrub,
                token_usage=request.entry.usage,
                withheld=request.options.withheld,
                may_be_text=request.endpoint.multipart,
            )

        try:
            return await self.read(rewritten)
        finally:
            self._give_up = None  # it belongs to an object that holds this one

    async def read(self, interpret: Callable[[BufferedReply, Scrub], T]) -> T:
        """Return what `interpret` makes of the backend's reply. An error that it raises may be retried."""
        return await with_retry(
            self._runtime.retries,
            self._request,
            self._admitted,
            lambda lease: self._asked(lease, interpret),
        )

    def progress(self) -> Progress:
        return Progress.of(self._request.entry, None)

    @property
    def waits(self) -> bool:
        return self._request.context.granted_at is None

    def runs_on(self, backend: str) -> bool:
        return self._request.context.runs_on(backend)

    async def _admitted(self) -> Lease:
        """Wait in the queue for a lease."""
        settled = asyncio.Event()
        with self._place.taken(settled.set, self._give_up):
            await settled.wait()
        return self._place.lease()

    async def _asked(self, lease: Lease, interpret: Callable[[BufferedReply, Scrub], T]) -> T:
        """Ask the backend and interpret its reply. Raises its error."""
        context, request, fleet = self._request.context, self._request, self._runtime.fleet
        backend = fleet.backend_of(lease.pool_name)
        fleet.affinity.note(lease.pool_name, request.prefix, lease.slots)
        context.backend = backend.name
        loop = asyncio.get_running_loop()

        def answered() -> None:
            lease.start()
            context.answered_at = loop.time()

        outcome = Outcome.UNUSED
        try:
            upstream_request = backend.whole_request(
                request.endpoint.upstream_path,
                request.body_for(lease),
                request.headers,
                partial(self._runtime.retries.may_send_again, request),
            )
            context.asked_at = loop.time()
            self._on_asked()
            outcome = Outcome.ABANDONED
            reply = await fetch(backend, upstream_request, self._timeouts, on_head=answered, room=self._room)
            backend.answered()
            outcome = Outcome.FINISHED if reply.success else Outcome.REFUSED
        except GatewayError as error:
            if error.retry_safe:  # the request did not reach the backend
                outcome = Outcome.UNUSED
            raise
        finally:
            lease.release(outcome)
        return interpret(reply, backend.scrubber(request.identity.model))
