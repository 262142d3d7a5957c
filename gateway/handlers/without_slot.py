"""The handler of the endpoints that need no slot: tokens, templates. The least busy backend answers.

These requests do not wait in the queue. If the model is not loaded, the answer is 503, and loading begins.
"""

from __future__ import annotations

import asyncio
import time

from starlette.types import Receive, Scope, Send

from slotgate.admission import HeldBody
from slotgate.gateway.api.chunks import Identity
from slotgate.gateway.api.endpoints import Endpoint
from slotgate.gateway.api.request import AddedOptions
from slotgate.gateway.api.request_reader import RequestReader
from slotgate.gateway.backends.backend import Backend, BackendState
from slotgate.gateway.forwarding.books import slot_free_request
from slotgate.gateway.forwarding.eligibility import check_served, upstream_headers
from slotgate.gateway.forwarding.entrance import arriving, body_held
from slotgate.gateway.forwarding.fetch import fetch
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.forwarding.unread_answer import UnreadAnswer
from slotgate.gateway.http.context import RequestContext, context_of
from slotgate.gateway.http.disconnect import abort_connection, until_client_gone
from slotgate.gateway.http.errors import CapacityError, ClientGone
from slotgate.gateway.settings import Settings

__all__ = ["WithoutSlot"]


class WithoutSlot:
    def __init__(
        self, settings: Settings, runtime: Runtime, endpoint: Endpoint, reader: RequestReader
    ) -> None:
        self._settings = settings
        self._limiter = runtime.limiter
        self._fleet = runtime.fleet
        self._bodies = runtime.bodies
        self._buffers = runtime.buffers
        self._endpoint = endpoint
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.path = self._endpoint.paths[0]
        with (
            slot_free_request(self._limiter, context),
            body_held(self._bodies, context, scope) as body,
        ):
            await self._serve(context, body, scope, receive, send)

    async def _serve(
        self, context: RequestContext, held: HeldBody, scope: Scope, receive: Receive, send: Send
    ) -> None:
        parsed = await arriving(held, lambda grow: self._reader.read(self._endpoint, scope, receive, grow))
        model = self._fleet.catalogue.resolve(parsed.parameters.model, context.tenant)
        context.model = model.name
        check_served(model.backends)
        backend = _least_busy(model.backends)
        if backend is None:
            self._fleet.request_load(model.name)
            raise CapacityError(503, "no_backend", "no backend serves this model now", retry_after_s=2.0)
        context.backend = backend.name
        body = await self._reader.body_for_backend(
            parsed, context.tenant, model.upstream_name, AddedOptions()
        )
        request = backend.whole_request(self._endpoint.upstream_path, body, upstream_headers(scope, context))
        context.asked_at = asyncio.get_running_loop().time()
        identity = Identity("", int(time.time()), parsed.parameters.model or model.name)
        sent = False
        with until_client_gone(receive) as watch:
            reply = await fetch(backend, request, self._settings.timeouts)
            reply = reply.rewritten(identity, self._endpoint.stamp, backend.scrubber(identity.model))
            unread = UnreadAnswer(self._buffers, context.tenant.name, watch)
            await unread.send(send, reply, within_s=self._settings.timeouts.total_s)
            sent = True
        if not sent:
            if watch.stalled and not watch.gone:
                context.outcome = "client_stalled"
                await abort_connection(scope, receive)
            raise ClientGone


def _least_busy(backends: list[Backend]) -> Backend | None:
    ready = [backend for backend in backends if backend.state is BackendState.READY]
    return min(ready, key=lambda backend: len(backend.pool.leases), default=None)
