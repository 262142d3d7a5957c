"""A streaming answer: wait for a lease, ask the backend, relay, and end in the one right way.

The request's task pumps frames to the client from the first moment on; the wait for a slot, the backend's
answer and every deadline only change what there is to send. Until something has been sent, an error keeps its
status; afterwards it is one framed error and the end of the body.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from starlette.types import Receive, Scope, Send

from slotgate.admission import Lease, Outcome, Ticket
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.forwarding.prepared_request import PreparedRequest
from slotgate.gateway.forwarding.queueing import granted, owned, submit
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.disconnect import ClientWatch, abort_connection, until_client_gone
from slotgate.gateway.http.errors import ClientGone, GatewayError, internal_error, upstream_timeout
from slotgate.gateway.http.headers import Headers
from slotgate.gateway.settings import Settings
from slotgate.gateway.streaming.deadlines import Deadlines, StreamLimits, StreamTimes
from slotgate.gateway.streaming.downstream import Downstream
from slotgate.gateway.streaming.frames import Frames
from slotgate.gateway.streaming.relay import Relay

__all__ = ["StreamedAnswer"]

NO_EVENT = "first_byte_timeout"
QUEUE_EVENT_S = 1.0
"""How often a waiting client is told of a new place in the queue at most."""
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class StreamedAnswer:
    def __init__(self, settings: Settings, runtime: Runtime, generation: PreparedRequest) -> None:
        self._settings = settings
        self._runtime = runtime
        self._fleet = runtime.fleet
        self._generation = generation
        self._context: RequestContext = generation.context
        self._loop = asyncio.get_running_loop()
        self._entry = generation.entry
        self._token_usage = generation.entry.usage
        self._out: Downstream | None = None
        self._frames: Frames | None = None
        self._ticket: Ticket | None = None
        self._cut_error: GatewayError | None = None
        """Why the request was ended; where a backend was asked already, there is no second attempt."""
        self._relay: Relay | None = None

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `GatewayError` while the status is free, `ClientGone` when the client left."""
        out: Downstream | None = None
        try:
            with (
                self._runtime.in_flight.holding(
                    self, self._context, supersede_key=self._generation.supersede_key
                ),
                until_client_gone(receive) as watch,
                contextlib.suppress(ClientGone),
            ):
                out = self._out = self._downstream(scope, send, watch)
                frames = self._frames = Frames(
                    self._generation.dialect(), out, self._token_usage, self._loop.time
                )
                watchdog = self._watchdog(out, frames, watch)
                try:
                    await self._run(out, frames, watchdog)
                finally:
                    watchdog.close()
            if watch.stalled and not watch.gone:
                await self._cut(scope, receive)
            if (watch.gone or watch.stalled) and not (out is not None and out.complete):
                raise ClientGone
        finally:
            if out is not None:
                out.discard()
            if self._frames is not None:
                self._context.first_output_at = self._frames.first_output_at

    def cancel(self, error: GatewayError) -> None:
        """End with this error, wherever the request is on its way."""
        self._cut_error = error
        if self._ticket is not None and self._ticket.queued:
            self._runtime.scheduler.withdraw(self._ticket)
            if self._out is not None:
                self._out.wake()
        elif self._relay is not None:
            self._relay.fail(error)

    def progress(self) -> Progress:
        first_output_at = self._frames.first_output_at if self._frames is not None else None
        return Progress.of(self._entry, first_output_at)

    # -- the request's course

    def _downstream(self, scope: Scope, send: Send, client: ClientWatch) -> Downstream:
        streaming = self._settings.streaming
        return Downstream(
            send,
            self._loop,
            client,
            headers=_headers,
            buffer_limit=streaming.stream_buffer_bytes,
            budget=self._runtime.buffers,
            tenant=self._context.tenant.name,
            merge=streaming.merge == "backlog",
            writer=scope.get("extensions", {}).get("slotgate.write"),
        )

    async def _run(self, out: Downstream, frames: Frames, watchdog: Deadlines) -> None:
        """All the way to the end of the body, if the client stays."""
        try:
            await self._generate(out, frames, watchdog)
        except ClientGone:
            raise
        except Exception as error:
            failure = error if isinstance(error, GatewayError) else internal_error(error, self._context.id)
            self._context.code, self._context.message = failure.code, failure.message
            self._entry.failure = failure
            if not out.committed:
                raise failure from failure.__cause__
            out.close(frames.failure(failure))
            await out.pump(lambda: True)
        await out.end()

    async def _generate(self, out: Downstream, frames: Frames, watchdog: Deadlines) -> None:
        """Once, or twice where the first backend is known not to have begun."""
        for attempts_left in (1, 0):
            lease = self._entry.lease = await self._admitted(out)
            try:
                relay = await self._relayed(lease, out, frames, watchdog)
            finally:
                lease.release(Outcome.UNUSED)
            if relay.error is None:
                return
            if not (attempts_left and self._fleet.may_retry(relay.error, lease)):
                raise relay.error

    async def _admitted(self, out: Downstream) -> Lease:
        """A lease, once it is this request's turn."""
        if self._cut_error is not None:  # when the attempt before this one had just failed
            raise self._cut_error
        context, demand = self._context, self._generation.demand
        context.queued_at = context.queued_at or self._loop.time()
        self._relay = None  # of an attempt before this one
        ticket = self._ticket = submit(self._runtime.queue, demand, out.wake)
        with owned(ticket, self._runtime.scheduler), self._place_told(ticket, out):
            await out.pump(lambda: not ticket.queued)
            if self._cut_error is not None:
                raise self._cut_error
        context.granted_at = self._loop.time()
        return granted(ticket, self._runtime.scheduler)

    @contextlib.contextmanager
    def _place_told(self, ticket: Ticket, out: Downstream) -> Iterator[None]:
        """While the ticket waits, its client hears where it stands, if it asked: at once, then at changes."""
        if not self._generation.queue_events:
            yield
            return
        timer: asyncio.TimerHandle | None = None
        told = 0

        def tell() -> None:
            nonlocal timer, told
            if not ticket.queued or out.closing:
                return
            try:
                position, eta_s = self._runtime.scheduler.position(ticket)
                if position != told:
                    told = position
                    out.put(b": queued position=%d eta=%.1fs\n\n" % (position, eta_s))
                    out.wake()
            except Exception as error:
                out.fail(error)
            timer = self._loop.call_later(QUEUE_EVENT_S, tell)

        tell()
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()

    async def _relayed(self, lease: Lease, out: Downstream, frames: Frames, watchdog: Deadlines) -> Relay:
        """Ask the backend and relay what it says; nothing of it is left when this returns or raises."""
        backend = self._fleet.backend_of(lease.pool_name)
        self._fleet.affinity.note(lease.pool_name, self._generation.prefix, lease.slots)
        self._context.backend = backend.name
        generation = self._generation
        relay = self._relay = Relay(
            lease,
            frames,
            out,
            self._context,
            grace_s=self._settings.streaming.terminal_grace_s,
            scrub=backend.scrubber(generation.identity.model),
            loop=self._loop,
            on_answer=backend.answered,
            on_first_event=watchdog.begin,
        )
        request = backend.stream_request(
            generation.endpoint.upstream_path, generation.body_for(lease), generation.headers
        )
        try:
            relay.start(backend.transport, request)
            await out.pump(lambda: relay.over, source=relay)
        finally:
            relay.close()
        if relay.error is not None and relay.error.code == NO_EVENT:
            backend.silent()
        if relay.error is None:
            self._token_usage.settle()
            backend.states_usage = backend.states_usage and self._token_usage.states_counts
        return relay

    # -- deadlines and keep-alives

    def _watchdog(self, out: Downstream, frames: Frames, watch: ClientWatch) -> Deadlines:
        settings = self._settings
        limits = StreamLimits(
            keepalive_interval_s=settings.streaming.keepalive_interval_s,
            first_byte_s=settings.timeouts.first_byte_s,
            idle_s=settings.timeouts.idle_s,
            total_s=settings.timeouts.total_s,
            client_stall_timeout_s=settings.streaming.client_stall_timeout_s,
        )

        def keepalive() -> None:
            try:
                frame = frames.keepalive()
                if frame and not out.closing:
                    out.put(frame)
                    out.wake()
            except Exception as error:
                out.fail(error)

        def expired(limit: str) -> None:
            if limit == "client_stall":
                watch.stall()
            elif self._relay is not None:
                self._relay.fail(upstream_timeout(limit))

        return Deadlines(
            self._loop, limits, lambda: self._times(out), on_keepalive=keepalive, on_expired=expired
        )

    def _times(self, out: Downstream) -> StreamTimes:
        if self._relay is not None:
            return self._relay.times()
        return StreamTimes(began_at=self._context.began_at, sending_since=out.sending_since)

    async def _cut(self, scope: Scope, receive: Receive) -> None:
        """The client no longer reads: close its connection, unsent bytes and all."""
        self._context.outcome = "client_stalled"
        await abort_connection(scope, receive)


def _headers() -> Headers:
    return list(_STREAM_HEADERS)
