"""An answer that is no stream: wait for a lease, ask the backend, read the answer whole, send it.

The lease is released before the body is sent: a success when the upstream's message is complete, an error
answer likewise, anything else as abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
from starlette.types import Receive, Send

from admission import Lease, Outcome
from gateway.admit import granted, owned, submit
from gateway.answers import error_of_answer
from gateway.backend import Backend
from gateway.chunks import dumped
from gateway.context import RequestContext
from gateway.disconnect import until_client_gone
from gateway.errors import ClientGone, GatewayError, UpstreamError, upstream_timeout
from gateway.fleet import Fleet
from gateway.generation import Generation
from gateway.metering import Meter
from gateway.payload import mended, parsed
from gateway.replies import send_whole
from gateway.settings import Settings

__all__ = ["WholeAnswer"]

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""It is held in memory. 8,192 tokens with 20 log probabilities each come to less than a third of this."""


class WholeAnswer:
    def __init__(self, settings: Settings, fleet: Fleet, generation: Generation) -> None:
        self._settings = settings
        self._fleet = fleet
        self._generation = generation
        self._context: RequestContext = generation.context
        self._meter = Meter()
        self._stop: Callable[[], None] | None = None
        """Ends the wait for the answer, while there is one."""
        self._cut: GatewayError | None = None
        self._lease: Lease | None = None

    async def serve(self, receive: Receive, send: Send) -> None:
        """Raises `GatewayError`, or `ClientGone` when the client left."""
        sent = False
        try:
            with self._fleet.live.holding(self), until_client_gone(receive) as watch:
                self._stop = watch.stop
                status, body = await self._answer()
                self._stop = None
                await send_whole(send, status, [(b"content-type", b"application/json")], body)
                sent = True
        finally:
            self._generation.book(self._meter, self._lease)
        if watch.gone and not sent:
            raise ClientGone
        if self._cut is not None and not sent:
            raise self._cut

    def cut(self, error: GatewayError) -> None:
        """End with this error, unless the answer is being sent already."""
        if self._stop is not None:
            self._cut = error
            self._stop()

    async def _answer(self) -> tuple[int, bytes]:
        """Once, or twice where the first backend is known not to have begun."""
        for attempts_left in (1, 0):
            lease = self._lease = await self._admitted()
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
        ticket = submit(self._fleet.queue, demand, settled.set)
        with owned(ticket, self._fleet.scheduler):
            await settled.wait()
        context.granted_at = loop.time()
        return granted(ticket, self._fleet.scheduler)

    async def _ask(self, lease: Lease) -> tuple[int, bytes]:
        backend = self._fleet.backend_of(lease.pool_name)
        self._context.backend = backend.name
        ending = Outcome.UNUSED
        try:
            request = backend.request(self._generation.path, self._generation.body, self._generation.headers)
            ending = Outcome.ABANDONED
            status, body = await self._exchange(backend, request, lease)
            ending = Outcome.FINISHED if 200 <= status < 300 else Outcome.REFUSED
        except httpx.TransportError as error:
            if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
                ending = Outcome.UNUSED
            raise _failure(error) from error
        finally:
            lease.release(ending)
        return self._rewritten(backend, status, body)

    async def _exchange(self, backend: Backend, request: httpx.Request, lease: Lease) -> tuple[int, bytes]:
        """Status and whole body, within the limits of time."""
        timeouts = self._settings.timeouts
        loop = asyncio.get_running_loop()
        asked_at = self._context.asked_at = loop.time()
        total_at = asked_at + timeouts.total_s
        body = bytearray()
        began = False
        try:
            async with asyncio.timeout_at(min(asked_at + timeouts.first_byte_s, total_at)) as deadline:
                response = await backend.transport.handle_async_request(request)
                lease.start()
                self._context.answered_at = loop.time()
                began = True
                try:
                    deadline.reschedule(min(loop.time() + timeouts.idle_s, total_at))
                    async for piece in response.aiter_raw():
                        body += piece
                        if len(body) > MAX_ANSWER_BYTES:
                            message = f"the backend's answer is over {MAX_ANSWER_BYTES} bytes"
                            raise UpstreamError("upstream_broken", message)
                        deadline.reschedule(min(loop.time() + timeouts.idle_s, total_at))
                finally:
                    await response.aclose()
        except TimeoutError as error:
            limit = "idle_timeout" if began else "first_byte_timeout"
            limit = "total_timeout" if loop.time() >= total_at else limit
            raise upstream_timeout(limit) from error
        return response.status_code, bytes(body)

    def _rewritten(self, backend: Backend, status: int, body: bytes) -> tuple[int, bytes]:
        """The backend's success under the gateway's identity. Raises its error."""
        scrub = backend.scrubber(self._generation.identity.model)
        if not 200 <= status < 300:
            raise error_of_answer(status, body, scrub)
        said = parsed(body) or mended(body)
        if said is None:
            raise UpstreamError("upstream_broken", "the backend's answer is not a JSON object")
        self._meter.read(said)
        self._meter.settle()
        self._generation.identity.stamp(said)
        return status, dumped(said)


def _failure(error: httpx.TransportError) -> UpstreamError:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return UpstreamError("upstream_unreachable", "the backend could not be reached", retry_safe=True)
        case httpx.RemoteProtocolError():
            return UpstreamError("upstream_broken", "the backend sent something that is not HTTP")
    message = "the backend closed the connection before its answer was complete"
    return UpstreamError("upstream_truncated", message)
