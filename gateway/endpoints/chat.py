"""`POST /v1/chat/completions`: from the body to the last frame.

    read body -> check -> resolve model -> take a place -> (lease) -> ask the backend -> relay -> end

Everything after the body runs under one disconnect watcher. A streaming answer and a whole one share all
steps but the last two: `gateway.streaming` and `gateway.whole` hold those.
"""

from __future__ import annotations

import secrets
import time

from starlette.types import Receive, Scope, Send

from admission import Demand
from gateway.admit import priority_of
from gateway.backend import Backend
from gateway.body import read_body
from gateway.chat import BodyParser, ChatRequest, Upgrade
from gateway.chunks import Identity
from gateway.context import RequestContext, context_of
from gateway.endpoints.served import check_served, upstream_headers, widest
from gateway.errors import ClientError
from gateway.fleet import Fleet
from gateway.frames import KeepAlive
from gateway.generation import Generation
from gateway.settings import Settings
from gateway.streaming import StreamingAnswer
from gateway.whole import WholeAnswer

__all__ = ["ChatCompletions"]

PATH = "/v1/chat/completions"


class ChatCompletions:
    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self._settings = settings
        self._fleet = fleet
        self._bodies = BodyParser()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        server = self._settings.server
        body = await read_body(
            scope, receive, max_bytes=server.max_body_bytes, timeout_s=server.body_timeout_s
        )
        generation = await self._prepare(scope, context, body)
        if context.stream:
            answer = StreamingAnswer(
                self._settings, self._fleet, generation, _keepalive(scope, self._settings)
            )
            await answer.serve(scope, receive, send)
        else:
            await WholeAnswer(self._settings, self._fleet, generation).serve(receive, send)

    async def _prepare(self, scope: Scope, context: RequestContext, body: bytes) -> Generation:
        parsed = await self._bodies.parse(body)
        request = ChatRequest.of(parsed)
        tenant = context.tenant
        model = self._fleet.catalogue.resolve(request.model, tenant)
        context.model = model.name
        context.stream = request.stream
        check_served(model.backends)
        self._check_width(model.backends, request)
        upgrade = self._upgrade(model.backends, request)
        changes = request.changes(parsed, tenant, model.upstream_name, upgrade)
        identity = Identity(
            id=f"chatcmpl-{secrets.token_hex(12)}",
            created=int(time.time()),
            model=request.model or model.name,
        )
        demand = Demand(
            tenant=tenant.name,
            model=model.name,
            width=request.n,
            cost=request.cost(len(body), tenant),
            priority=priority_of(scope, tenant),
            body_bytes=len(body),
        )
        return Generation(
            context=context,
            path=PATH,
            body=await self._bodies.splice(body, changes),
            headers=upstream_headers(scope, context, stream=request.stream),
            identity=identity,
            demand=demand,
            choices=request.n,
            running_usage=request.running_usage,
            upgrade=upgrade,
        )

    def _check_width(self, backends: list[Backend], request: ChatRequest) -> None:
        slots = widest(backends)
        if slots and request.n > slots:
            raise ClientError("invalid_request", f"n may be at most {slots} here", param="n")

    def _upgrade(self, backends: list[Backend], request: ChatRequest) -> Upgrade:
        states_usage = all(backend.states_usage for backend in backends)
        return Upgrade(
            usage=request.stream and not request.include_usage and not states_usage,
            timings=request.stream and request.running_usage and not request.timings_per_token,
        )


def _keepalive(scope: Scope, settings: Settings) -> KeepAlive:
    asked = dict(scope["headers"]).get(b"x-slotgate-keepalive", b"").strip().lower()
    forms: dict[bytes, KeepAlive] = {b"comment": "comment", b"chunk": "chunk", b"off": "off"}
    return forms.get(asked, settings.streaming.keepalive)
