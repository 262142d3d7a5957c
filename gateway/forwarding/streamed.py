"""A streamed answer: wait for a lease, ask the backend, relay its stream, and end it properly.

The request's task sends frames to the client from the first moment on. The wait for a slot, the backend's
stream and the deadlines put frames into the buffer that it empties. Until something has been sent, an error
becomes a response with its own status. After that it becomes the last frame of the body.

An ended request must be freed at once, with its body, and not by the next run of the garbage collector. So no
two objects here refer to each other, and no error is kept longer than it is used.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from starlette.types import Receive, Scope, Send

from slotgate.admission import Lease, Scheduler, Ticket
from slotgate.gateway.forwarding.attempts import with_retry
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.forwarding.place import Place
from slotgate.gateway.forwarding.prepared_request import PreparedRequest
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
"""Seconds between two comments that state a waiting client's place in the queue."""
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class StreamedAnswer:
    def __init__(self, settings: Settings, runtime: Runtime, request: PreparedRequest) -> None:
        self._settings = settings
        self._runtime = runtime
        self._fleet = runtime.fleet
        self._request = request
        self._context: RequestContext = request.context
        self._loop = asyncio.get_running_loop()
        self._entry = request.entry
        self._out: Downstream | None = None
        self._frames: Frames | None = None
        self._place = Place(runtime, request, self._loop.time)
        self._cancelled: GatewayError | None = None
        """The error that was given to `cancel`. No second attempt follows it."""
        self._relay: Relay | None = None

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request.

        Raises `GatewayError` if no status has been sent, and `ClientGone` if the client left.
        """
        out: Downstream | None = None
        try:
            with (
                self._runtime.in_flight.holding(
                    self, self._context, supersede_key=self._request.supersede_key
                ),
                until_client_gone(receive) as watch,
                contextlib.suppress(ClientGone),
            ):
                out = self._out = self._downstream(scope, send, watch)
                frames = self._frames = Frames(
                    self._request.dialect(), out, self._entry.usage, self._loop.time
                )
                watchdog = self._watchdog(out, frames, watch)
                try:
                    await self._run(out, frames, watchdog)
                finally:
                    watchdog.close()
            if watch.stalled and not watch.gone:
                self._context.outcome = "client_stalled"
                await abort_connection(scope, receive)  # unsent bytes and all: the client does not read
            if (watch.gone or watch.stalled) and not (out is not None and out.complete):
                raise ClientGone
        finally:
            self._cancelled = None  # if it was raised, its traceback holds this object
            if out is not None:
                out.discard()
            if self._frames is not None:
                self._context.first_output_at = self._frames.first_output_at

    def cancel(self, error: GatewayError) -> None:
        """End the request with this error, wherever it is: in the queue, in prefill or in the stream."""
        self._cancelled = error
        if self._place.queued:
            self._place.leave()
            if self._out is not None:
                self._out.wake()
        elif self._relay is not None:
            self._relay.fail(error)

    def progress(self) -> Progress:
        first_output_at = self._frames.first_output_at if self._frames is not None else None
        return Progress.of(self._entry, first_output_at)

    @property
    def waits(self) -> bool:
        return self._context.granted_at is None

    def runs_on(self, backend: str) -> bool:
        return self._context.runs_on(backend)

    # -- from the queue to the end

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
        """Serve the request up to the end of the body.

        A failure is sent inside the stream if it has begun.
        """
        try:
            await with_retry(
                self._runtime.retries,
                self._request,
                lambda: self._admitted(out),
                lambda lease: self._relayed(lease, out, frames, watchdog),
            )
        except ClientGone:
            raise
        except GatewayError as error:
            self._note(error)
            if not out.committed:
                raise
            out.close(frames.failure(error))
        except Exception as error:
            failure = internal_error(error, self._context.id)
            self._note(failure)
            try:
                if not out.committed:
                    raise failure from error
                out.close(frames.failure(failure))
            finally:
                del failure  # its traceback holds this frame
        await out.pump(lambda: True)
        await out.end()

    def _take_cancellation(self) -> GatewayError:
        """Return the error given to `cancel`, and forget it: its traceback will refer to this object."""
        error, self._cancelled = self._cancelled, None
        assert error is not None
        return error

    def _note(self, failure: GatewayError) -> None:
        self._context.code, self._context.message = failure.code, failure.message
        self._entry.failure = failure

    async def _admitted(self, out: Downstream) -> Lease:
        """Wait in the queue for a lease."""
        if self._cancelled is not None:  # `cancel` was called just after the first attempt had failed
            raise self._take_cancellation()
        self._relay = None  # the relay of the first attempt is over
        with self._place.taken(out.wake, self.cancel) as ticket, self._position_told(ticket, out):
            await out.pump(lambda: not ticket.queued)
            if self._cancelled is not None:
                raise self._take_cancellation()
        return self._place.lease()

    @contextlib.contextmanager
    def _position_told(self, ticket: Ticket, out: Downstream) -> Iterator[None]:
        """State the place in the queue if the client asked for it: at once, and after every change."""
        if not self._request.queue_events:
            yield
            return
        telling = asyncio.get_running_loop().create_task(
            _tell_position(ticket, out, self._runtime.scheduler), name="queue position"
        )
        try:
            yield
        finally:
            telling.cancel()

    async def _relayed(self, lease: Lease, out: Downstream, frames: Frames, watchdog: Deadlines) -> None:
        """Ask the backend and relay its stream. The exchange is over when this returns or raises.

        Raises the error that the relay failed with.
        """
        backend = self._fleet.backend_of(lease.pool_name)
        self._fleet.affinity.note(lease.pool_name, self._request.prefix, lease.slots)
        self._context.backend = backend.name
        request = self._request

        def begun() -> None:
            watchdog.begin()
            request.let_go_of_body()

        relay = self._relay = Relay(
            lease,
            frames,
            out,
            self._context,
            grace_s=self._settings.streaming.terminal_grace_s,
            scrub=backend.scrubber(request.identity.model),
            loop=self._loop,
            on_answer=backend.answered,
            on_first_event=begun,
        )
        try:
            relay.start(
                backend.transport,
                backend.stream_request(
                    request.endpoint.upstream_path, request.body_for(lease), request.headers
                ),
            )
            await out.pump(lambda: relay.over, source=relay)
        finally:
            relay.close()
            if relay.succeeded:  # also if the client has left since
                self._entry.usage.settle()
        if relay.error is None:
            backend.states_usage = backend.states_usage and self._entry.usage.states_counts
            return
        if relay.error.code == NO_EVENT:
            backend.silent()
        raise relay.take_error()

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


async def _tell_position(ticket: Ticket, out: Downstream, scheduler: Scheduler) -> None:
    """Put a comment with the ticket's place into the stream, at once and after every change."""
    told = 0
    while ticket.queued and not out.closing:
        try:
            position, eta_s = scheduler.position(ticket)
            if position != told:
                told = position
                out.put(b": queued position=%d eta=%.1fs\n\n" % (position, eta_s))
                out.wake()
        except Exception as error:
            out.fail(error)
            return
        await asyncio.sleep(QUEUE_EVENT_S)


def _headers() -> Headers:
    return list(_STREAM_HEADERS)
