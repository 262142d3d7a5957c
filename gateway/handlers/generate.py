"""Every endpoint that takes a slot: from the body to the last frame.

    read body -> check -> resolve model -> take a place -> (lease) -> ask the backend -> relay -> end

Everything after the body runs under one disconnect watcher. A streaming answer and a whole one share all
steps but the last two, which are in `forwarding/streamed.py` and `forwarding/buffered.py`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from slotgate.admission import Demand
from slotgate.gateway.api.chunks import Identity
from slotgate.gateway.api.dialects import FrameOptions, KeepAlive
from slotgate.gateway.api.endpoints import Endpoint
from slotgate.gateway.api.prompt_prefix import PromptPrefix
from slotgate.gateway.api.request import GenerationRequest, Upgrade
from slotgate.gateway.api.request_reader import ParsedRequest, RequestReader
from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.models import Model
from slotgate.gateway.forwarding.buffered import BufferedAnswer
from slotgate.gateway.forwarding.eligibility import check_served, upstream_headers, widest
from slotgate.gateway.forwarding.prepared_request import PreparedRequest
from slotgate.gateway.forwarding.queueing import priority_of
from slotgate.gateway.forwarding.rate_limits import within_limits
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.forwarding.streamed import StreamedAnswer
from slotgate.gateway.http.context import RequestContext, TenantIdentity, context_of, headers_of
from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.settings import Settings

__all__ = ["Generate"]

MAX_KEY_BYTES = 256
_SESSION_HEADERS = (b"x-slotgate-session", b"x-session-id", b"x-claude-code-session-id")


class Generate:
    def __init__(
        self, settings: Settings, runtime: Runtime, endpoint: Endpoint, reader: RequestReader
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._fleet = runtime.fleet
        self._endpoint = endpoint
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        context.path = self._endpoint.paths[0]
        asked = await self._reader.read(self._endpoint, scope, receive)
        generation = await self._prepare(scope, context, asked)
        limiter, cost = self._runtime.limiter, generation.demand.cost
        prompt_tokens = asked.request.prompt_cost(asked.size)
        with within_limits(limiter, generation.context, cost, prompt_tokens=prompt_tokens):
            if generation.context.stream:
                await StreamedAnswer(self._settings, self._runtime, generation).serve(scope, receive, send)
            else:
                await BufferedAnswer(self._settings, self._runtime, generation).serve(receive, send)

    async def _prepare(self, scope: Scope, context: RequestContext, asked: ParsedRequest) -> PreparedRequest:
        endpoint, request, tenant = self._endpoint, asked.request, context.tenant
        model = self._fleet.catalogue.resolve(request.model, tenant)
        context.model = model.name
        context.stream = request.stream
        check_served(model.backends)
        slots = widest(model.backends)
        if slots and request.n > slots:
            raise ClientError("invalid_request", f"n may be at most {slots} here", param="n")
        affinity = self._fleet.affinity
        prefix = PromptPrefix()
        several = len(model.backends) > 1 or any(backend.pool.numbered for backend in model.backends)
        if several and not tenant.isolated:
            prefix = endpoint.body.prefix(asked.members, _session(scope, tenant, asked.members))
        upgrade = _upgrade(model.backends, request)
        tokens, open_ended = self._tokens(model, asked, tenant)
        demand = Demand(
            tenant=tenant.name,
            model=model.name,
            width=request.width(slots),
            cost=request.cost(asked.size, tenant),
            priority=priority_of(scope, tenant),
            body_bytes=asked.size,
            warmth=affinity.warmth(prefix),
            warm_slots=affinity.slots(prefix) | _asked_slot(asked.members, tenant, model.backends),
            tokens=tokens,
            open_ended=open_ended,
            numbered=endpoint.numbered,
            isolated=tenant.isolated,
        )
        return PreparedRequest(
            context=context,
            endpoint=endpoint,
            body=await self._reader.changed(asked, tenant, model.upstream_name, upgrade),
            headers=upstream_headers(scope, context, stream=request.stream, content_type=asked.content_type),
            identity=Identity(
                id=f"{endpoint.id_prefix}{secrets.token_hex(12)}" if endpoint.id_prefix else "",
                created=int(time.time()),
                model=request.model or model.name,
            ),
            demand=demand,
            options=FrameOptions(
                keepalive=_keepalive(scope, self._settings),
                running_usage=request.running_usage,
                strip_timings=upgrade.timings,
                withhold_usage=upgrade.usage,
                parts=request.parts,
            ),
            prefix=prefix,
            sizes=self._runtime.prompt_sizes,
            limit_name=request.limit_name,
            queue_events=headers_of(scope).get(b"x-slotgate-queue-events", b"").strip() == b"1",
            supersedes=headers_of(scope).get(b"x-slotgate-supersede", b"")[:MAX_KEY_BYTES],
        )

    def _tokens(self, model: Model, asked: ParsedRequest, tenant: TenantIdentity) -> tuple[int, bool]:
        """Of a shared context: for prompt and answer, and whether the answer has no limit and is left out. 0
        where none is shared.

        A backend that has not said yet what it has, because it is still to be loaded, may share one.
        """
        if not any(backend.pool.context or backend.n_ctx is None for backend in model.backends):
            return 0, False
        answer = asked.request.answer_tokens(tenant)
        return self._runtime.prompt_sizes.estimate(model.name, asked.size) + (answer or 0), answer is None


def _upgrade(backends: list[Backend], request: GenerationRequest) -> Upgrade:
    states_usage = all(backend.states_usage for backend in backends)
    on_demand = request.stream and request.shape.usage_on_demand
    return Upgrade(
        usage=on_demand and not request.include_usage and not states_usage,
        timings=request.stream and request.running_usage and not request.timings_per_token,
    )


def _asked_slot(
    members: Mapping[str, Any], tenant: TenantIdentity, backends: list[Backend]
) -> dict[str, int]:
    """The slot that the client asks for, if it may: it gets it where it is free and slots are numbered."""
    number = members.get("id_slot")
    if not tenant.allow_id_slot or not isinstance(number, int):
        return {}
    return {backend.pool.name: number for backend in backends}


def _session(scope: Scope, tenant: TenantIdentity, members: Mapping[str, Any]) -> bytes:
    """What the client calls its conversation, under any of the names in use."""
    headers = headers_of(scope)
    named = next((headers[name] for name in _SESSION_HEADERS if headers.get(name)), b"")
    key = members.get("prompt_cache_key")
    if not named and isinstance(key, str):
        named = key.encode(errors="replace")
    return tenant.name.encode() + b"\0" + named[:MAX_KEY_BYTES] if named else b""


def _keepalive(scope: Scope, settings: Settings) -> KeepAlive:
    asked = headers_of(scope).get(b"x-slotgate-keepalive", b"").strip().lower()
    forms: dict[bytes, KeepAlive] = {b"comment": "comment", b"chunk": "chunk", b"off": "off"}
    return forms.get(asked, settings.streaming.keepalive)
