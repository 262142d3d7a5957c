"""An answer that is no stream: wait for a lease, ask the backend, read the answer whole, send it.

The lease is released before the body is sent: a success when the upstream's message is complete, an error
answer likewise, anything else as abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

from starlette.types import Receive, Send

from slotgate.admission import Lease, Outcome
from slotgate.gateway.forwarding.fetch import Reply, fetch
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.forwarding.prepared_request import PreparedRequest
from slotgate.gateway.forwarding.queueing import granted, owned, submit
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.disconnect import until_client_gone
from slotgate.gateway.http.errors import ClientGone, GatewayError
from slotgate.gateway.http.replies import send_whole
from slotgate.gateway.settings import Settings

__all__ = ["BufferedAnswer"]


class BufferedAnswer:
    def __init__(self, settings: Settings, runtime: Runtime, generation: PreparedRequest) -> None:
        self._settings = settings
        self._runtime = runtime
        self._fleet = runtime.fleet
        self._generation = generation
        self._context: RequestContext = generation.context
        self._entry = generation.entry
        self._stop: Callable[[], None] | None = None
        """Ends the wait for the answer, while there is one."""
        self._cut: GatewayError | None = None

    async def serve(self, receive: Receive, send: Send) -> None:
        """Raises `GatewayError`, or `ClientGone` when the client left."""
        sent = False
        with self._holding(), until_client_gone(receive) as watch:
            self._stop = watch.stop
            reply = await self._answer()
            self._stop = None
            if self._cut is None:
                content_type = (b"content-type", reply.content_type)
                await send_whole(send, reply.status, [content_type], reply.body)
                sent = True
        if watch.gone and not sent:
            raise ClientGone
        if self._cut is not None:
            raise self._cut

    def _holding(self) -> AbstractContextManager[None]:
        return self._runtime.in_flight.holding(
            self, self._context, supersede_key=self._generation.supersede_key
        )

    def cancel(self, error: GatewayError) -> None:
        """End with this error, unless the answer is being sent already."""
        if self._stop is not None:
            self._cut = error
            self._stop()

    def progress(self) -> Progress:
        return Progress.of(self._entry, None)

    async def _answer(self) -> Reply:
        """Once, or twice where the first backend is known not to have begun."""
        for attempts_left in (1, 0):
            lease = self._entry.lease = await self._admitted()
            try:
                return await self._ask(lease)
            except GatewayError as error:
                if not (attempts_left and self._fleet.may_retry(error, lease)):
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _admitted(self) -> Lease:
        context, demand = self._context, self._generation.demand
        loop = asyncio.get_running_loop()
        context.queued_at = context.queued_at or loop.time()
        settled = asyncio.Event()
        ticket = submit(self._runtime.queue, demand, settled.set)
        with owned(ticket, self._runtime.scheduler):
            await settled.wait()
        context.granted_at = loop.time()
        return granted(ticket, self._runtime.scheduler)

    async def _ask(self, lease: Lease) -> Reply:
        context, generation = self._context, self._generation
        backend = self._fleet.backend_of(lease.pool_name)
        self._fleet.affinity.note(lease.pool_name, self._generation.prefix, lease.slots)
        context.backend = backend.name
        loop = asyncio.get_running_loop()

        def answered() -> None:
            lease.start()
            context.answered_at = loop.time()

        ending = Outcome.UNUSED
        try:
            request = backend.whole_request(
                generation.endpoint.upstream_path, generation.body_for(lease), generation.headers
            )
            context.asked_at = loop.time()
            ending = Outcome.ABANDONED
            reply = await fetch(backend, request, self._settings.timeouts, on_head=answered)
            backend.answered()
            ending = Outcome.FINISHED if reply.success else Outcome.REFUSED
        except GatewayError as error:
            if error.retry_safe:  # it was not reached
                ending = Outcome.UNUSED
            raise
        finally:
            lease.release(ending)
        identity = generation.identity
        scrub = backend.scrubber(identity.model)
        endpoint = generation.endpoint
        return reply.rewritten(
            identity,
            endpoint.stamp,
            scrub,
            token_usage=self._entry.usage,
            withheld=generation.options.withheld,
            may_be_text=endpoint.multipart,
        )
