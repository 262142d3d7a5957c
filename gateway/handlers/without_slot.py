"""The handler of the endpoints that need no slot: tokens, templates. The least busy backend answers.

These requests do not wait in the queue. If the model is not loaded, the answer is 503, and loading begins.
"""

from __future__ import annotations

import asyncio
import time

from starlette.types import Receive, Scope, Send

from slotgate.gateway.api.chunks import Identity
from slotgate.gateway.api.endpoints import Endpoint
from slotgate.gateway.api.request import AddedOptions
from slotgate.gateway.api.request_reader import RequestReader
from slotgate.gateway.backends.backend import Backend, BackendState
from slotgate.gateway.forwarding.books import slot_free_request
from slotgate.gateway.forwarding.eligibility import check_served, upstream_headers
from slotgate.gateway.forwarding.fetch import BufferedReply, fetch
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.http.context import RequestContext, context_of
from slotgate.gateway.http.disconnect import until_client_gone
from slotgate.gateway.http.errors import CapacityError, ClientGone
from slotgate.gateway.http.replies import send_whole
from slotgate.gateway.settings import Settings

__all__ = ["WithoutSlot"]


class WithoutSlot:
    def __init__(
        self, settings: Settings, runtime: Runtime, endpoint: Endpoint, reader: RequestReader
    ) -> None:
        self._settings = settings
        self._limiter = runtime.limiter
        self._fleet = runtime.fleet
        self._endpoint = endpoint
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.path = self._endpoint.paths[0]
        with slot_free_request(self._limiter, context):
            await self._serve(context, scope, receive, send)

    async def _serve(self, context: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
        parsed = await self._reader.read(self._endpoint, scope, receive)
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
        reply: BufferedReply | None = None
        with until_client_gone(receive):
            reply = await fetch(backend, request, self._settings.timeouts)
        if reply is None:
            raise ClientGone
        identity = Identity("", int(time.time()), parsed.parameters.model or model.name)
        reply = reply.rewritten(identity, self._endpoint.stamp, backend.scrubber(identity.model))
        await send_whole(send, reply.status, [(b"content-type", reply.content_type)], reply.body)


def _least_busy(backends: list[Backend]) -> Backend | None:
    ready = [backend for backend in backends if backend.state is BackendState.READY]
    return min(ready, key=lambda backend: len(backend.pool.leases), default=None)
