"""A buffered answer to its client. One exchange with a backend makes it, or many do, and it is sent whole."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from slotgate.gateway.forwarding.exchange import Exchange
from slotgate.gateway.forwarding.in_flight import Progress
from slotgate.gateway.forwarding.prepared_request import PreparedRequest
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.forwarding.split import SplitExchange
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
        self._request = request
        self._context: RequestContext = request.context
        exchange = Exchange if request.split is None else SplitExchange
        self._exchange = exchange(runtime, settings.timeouts, request)
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
            reply = await self._exchange.reply(self.cancel)
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
        return self._exchange.progress()

    @property
    def waits(self) -> bool:
        return self._exchange.waits

    def runs_on(self, backend: str) -> bool:
        return self._exchange.runs_on(backend)

    def _take_cancellation(self) -> GatewayError:
        """Return the error given to `cancel`, and forget it: its traceback will refer to this object."""
        error, self._cancelled = self._cancelled, None
        assert error is not None
        return error
