"""A buffered answer: wait for a lease, ask the backend, read its whole answer, and send it.

The lease is released before the body is sent: as finished or refused if the upstream's message is complete,
else as abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from starlette.types import Receive, Scope, Send

from slotgate.admission import Lease, Outcome, Ticket
from slotgate.gateway.forwarding.attempts import with_retry
from slotgate.gateway.forwarding.fetch import BufferedReply, fetch
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.forwarding.prepared_request import PreparedRequest
from slotgate.gateway.forwarding.queueing import granted, owned, submit
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.forwarding.unread_answer import UnreadAnswer
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.disconnect import abort_connection, until_client_gone
from slotgate.gateway.http.errors import ClientGone, GatewayError
from slotgate.gateway.settings import Settings

__all__ = ["BufferedAnswer"]


class BufferedAnswer:
    def __init__(self, settings: Settings, runtime: Runtime, request: PreparedRequest) -> None:
        self._settings = settings
        self._runtime = runtime
        self._fleet = runtime.fleet
        self._request = request
        self._context: RequestContext = request.context
        self._entry = request.entry
        self._ticket: Ticket | None = None
        """Its last place in the queue."""
        self._stop: Callable[[], None] | None = None
        """Ends the wait for the answer; None once the answer is being sent."""
        self._cancelled: GatewayError | None = None
        """The error that was given to `cancel`."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request. Raises `GatewayError`, and `ClientGone` if the client left."""
        sent = False
        in_flight, key = self._runtime.in_flight, self._request.supersede_key
        with (
            in_flight.holding(self, self._context, supersede_key=key),
            until_client_gone(receive) as watch,
        ):
            self._stop = watch.stop
            reply = await with_retry(self._runtime.retries, self._request, self._admitted, self._asked)
            self._stop = None
            self._request.let_go_of_body()
            if self._cancelled is None:
                unread = UnreadAnswer(self._runtime.buffers, self._context.tenant.name, watch)
                await unread.send(send, reply, within_s=self._settings.timeouts.total_s)
                sent = True
        self._stop = None
        if watch.stalled and not watch.gone and not sent:
            self._context.outcome = "client_stalled"
            await abort_connection(scope, receive)
        if (watch.gone or watch.stalled) and not sent:
            raise ClientGone
        if self._cancelled is not None:
            raise self._take_cancellation()

    def cancel(self, error: GatewayError) -> None:
        """End the request with this error, unless the answer is being sent already."""
        if self._stop is not None:
            self._cancelled = error
            self._stop()

    def progress(self) -> Progress:
        return Progress.of(self._entry, None)

    def _take_cancellation(self) -> GatewayError:
        """Return the error given to `cancel`, and forget it: its traceback will refer to this object."""
        error, self._cancelled = self._cancelled, None
        assert error is not None
        return error

    async def _admitted(self) -> Lease:
        """Wait in the queue for a lease."""
        context, demand = self._context, self._request.demand
        loop = asyncio.get_running_loop()
        context.queued_at = context.queued_at or loop.time()
        settled = asyncio.Event()
        ticket = self._ticket = submit(self._runtime.queue, demand, settled.set, before=self._ticket)
        with owned(ticket, self._runtime.scheduler, self._request.held, self.cancel):
            await settled.wait()
        context.granted_at = loop.time()
        return granted(ticket, self._runtime.scheduler, self._fleet.reasons_of)

    async def _asked(self, lease: Lease) -> BufferedReply:
        """Ask the backend and return its success under the gateway's identity. Raises the backend's error."""
        context, request = self._context, self._request
        backend = self._fleet.backend_of(lease.pool_name)
        self._fleet.affinity.note(lease.pool_name, request.prefix, lease.slots)
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
            outcome = Outcome.ABANDONED
            reply = await fetch(backend, upstream_request, self._settings.timeouts, on_head=answered)
            backend.answered()
            outcome = Outcome.FINISHED if reply.success else Outcome.REFUSED
        except GatewayError as error:
            if error.retry_safe:  # the request did not reach the backend
                outcome = Outcome.UNUSED
            raise
        finally:
            lease.release(outcome)
        return reply.rewritten(
            request.identity,
            request.endpoint.stamp,
            backend.scrubber(request.identity.model),
            token_usage=self._entry.usage,
            withheld=request.options.withheld,
            may_be_text=request.endpoint.multipart,
        )
