"""The handler of every endpoint that takes a slot: from the body to the last frame.

    limits -> read body -> check -> resolve model -> queue -> lease -> ask the backend -> relay -> end

Streamed and buffered answers share all steps but the last two, which are in `forwarding/streamed.py` and
`forwarding/buffered.py`. From the queue on, each runs under one disconnect watcher.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from slotgate.admission import Demand, HeldBody, Priority
from slotgate.gateway.api.chunks import Identity
from slotgate.gateway.api.dialects import FrameOptions
from slotgate.gateway.api.endpoints import Endpoint
from slotgate.gateway.api.prompt_prefix import PromptPrefix
from slotgate.gateway.api.prompt_size import PromptSize
from slotgate.gateway.api.request import AddedOptions, RequestParameters
from slotgate.gateway.api.request_options import RequestOptions
from slotgate.gateway.api.request_reader import ParsedRequest, RequestReader
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.model_catalogue import ServedModel
from slotgate.gateway.forwarding.books import BookEntry, charged
from slotgate.gateway.forwarding.buffered import BufferedAnswer
from slotgate.gateway.forwarding.eligibility import check_served, upstream_headers, widest
from slotgate.gateway.forwarding.entrance import arriving, entered
from slotgate.gateway.forwarding.prepared_request import PreparedRequest
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.forwarding.split_entry import SplitEntry
from slotgate.gateway.forwarding.streamed import StreamedAnswer
from slotgate.gateway.http.context import RequestContext, TenantIdentity, context_of, headers_of
from slotgate.gateway.http.delivery import until_delivered
from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.settings import Settings

__all__ = ["Generate"]


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
        with entered(self._runtime, context, scope) as body:
            await self._serve(context, body, scope, receive, send)
            await until_delivered(scope)

    async def _serve(
        self, context: RequestContext, body: HeldBody, scope: Scope, receive: Receive, send: Send
    ) -> None:
        parsed = await arriving(body, lambda grow: self._reader.read(self._endpoint, scope, receive, grow))
        prepared = await self._prepare(scope, context, parsed, body)
        del parsed
        try:
            with charged(self._runtime.limiter, context, prepared.entry, prepared.demand.cost):
                if context.stream:
                    await StreamedAnswer(self._settings, self._runtime, prepared).serve(scope, receive, send)
                else:
                    await BufferedAnswer(self._settings, self._runtime, prepared).serve(scope, receive, send)
        finally:
            self._learn(prepared)

    def _learn(self, prepared: PreparedRequest) -> None:
        """Learn the sizes of the prompt and of the answer, as far as the backend has stated them."""
        usage, demand, prompt_tokens = prepared.entry.usage, prepared.demand, prepared.entry.stated_prompt
        if prompt_tokens is not None:
            self._runtime.prompt_sizes.note(demand.model, prepared.entry.prompt, prompt_tokens)
        if usage.finished and demand.tokens:
            kind = demand.tenant, demand.endpoint, demand.model
            self._runtime.answer_sizes.note(kind, usage.completed // usage.parts_expected)

    async def _prepare(
        self, scope: Scope, context: RequestContext, parsed: ParsedRequest, held: HeldBody
    ) -> PreparedRequest:
        """Check the request against its model, and work out what to send and which slot to ask for."""
        request, tenant = parsed.parameters, context.tenant
        options = RequestOptions.from_headers(headers_of(scope))
        model = self._fleet.catalogue.resolve(request.model, tenant)
        context.model, context.stream = model.name, request.stream
        check_served(model.backends)
        _check_n(request, model.backends)
        prefix = self._prefix(parsed, model, options, tenant)
        added = _added_options(model.backends, request)
        demand = self._demand(parsed, model, options, tenant, prefix)
        return PreparedRequest(
            context=context,
            endpoint=self._endpoint,
            body=await self._reader.body_for_backend(parsed, tenant, model.upstream_name, added),
            held=held,
            headers=upstream_headers(scope, context, stream=request.stream, content_type=parsed.content_type),
            identity=self._identity(request.model or model.name),
            demand=demand,
            options=self._frame_options(request, options, added),
            entry=(BookEntry if request.split is None else SplitEntry)(
                TokenUsage(request.n, request.pieces),
                parsed.prompt,
                self._runtime.prompt_sizes.expected(model.name, parsed.prompt),
                least_prompt=self._runtime.prompt_sizes.expected(
                    model.name, PromptSize(parsed.prompt.text_bytes)
                ),
                open_ended=request.answer_tokens(tenant) is None,
            ),
            prefix=prefix,
            limit_name=request.limit_name,
            queue_events=options.queue_events,
            supersede_key=options.supersede_key,
            split=request.split,
            shares_context=_may_share_context(model),
            names_slot=tenant.allow_id_slot and "id_slot" in parsed.members,
        )

    def _prefix(
        self, parsed: ParsedRequest, model: ServedModel, options: RequestOptions, tenant: TenantIdentity
    ) -> PromptPrefix:
        """Hash the prompt if a choice depends on it: between backends, or between numbered slots.

        Nothing of an isolated tenant is left in a slot, so there is no warm slot to find.
        """
        choice = len(model.backends) > 1 or any(backend.pool.numbered for backend in model.backends)
        if tenant.isolated or not choice:
            return PromptPrefix()
        session = options.session_key(tenant.name, parsed.members)
        return self._endpoint.body_format.prefix(parsed.members, session)

    def _demand(
        self,
        parsed: ParsedRequest,
        model: ServedModel,
        options: RequestOptions,
        tenant: TenantIdentity,
        prefix: PromptPrefix,
    ) -> Demand:
        """Return the demand for slots that the request makes of admission."""
        affinity = self._fleet.affinity
        context = self._context_need(model, parsed, tenant)
        return Demand(
            tenant=tenant.name,
            model=model.name,
            width=parsed.parameters.width(widest(model.backends)),
            cost=parsed.parameters.cost(
                self._runtime.prompt_sizes.expected(model.name, parsed.prompt), tenant
            ),
            priority=Priority.BATCH if options.batch or tenant.batch_only else Priority.INTERACTIVE,
            body_bytes=parsed.size,
            endpoint=self._endpoint.paths[0],
            warmth=affinity.warmth(prefix),
            warm_slots=affinity.slots(prefix) | _requested_slot(parsed.members, tenant, model.backends),
            tokens=context.most,
            likely_tokens=context.likely,
            open_ended=context.open_ended,
            numbered=self._endpoint.numbered,
            isolated=tenant.isolated,
        )

    def _context_need(
        self, model: ServedModel, parsed: ParsedRequest, tenant: TenantIdentity
    ) -> _ContextNeed:
        """Return what the request needs of a context that the slots of a backend share.

        It needs nothing where no backend shares its context. A buffered answer cannot be watched while it
        grows, so it counts with the longest that it may be. The prompts of a split request are added piece
        by piece.
        """
        if not _may_share_context(model):
            return _ContextNeed(0, None, open_ended=False)
        parameters = parsed.parameters
        split = parameters.split is not None
        prompt = 0 if split else self._runtime.prompt_sizes.at_most(model.name, parsed.prompt)
        most = parameters.answer_tokens(tenant)
        likely = self._runtime.answer_sizes.likely((tenant.name, self._endpoint.paths[0], model.name))
        known = parameters.stream and likely is not None
        return _ContextNeed(
            most=prompt + (most or 0),
            likely=prompt + likely * parameters.parts if known and likely is not None else None,
            open_ended=most is None,
        )

    def _identity(self, model: str) -> Identity:
        prefix = self._endpoint.id_prefix
        return Identity(
            id=f"{prefix}{secrets.token_hex(12)}" if prefix else "", created=int(time.time()), model=model
        )

    def _frame_options(
        self, request: RequestParameters, options: RequestOptions, added: AddedOptions
    ) -> FrameOptions:
        return FrameOptions(
            keepalive=options.keepalive or self._settings.streaming.keepalive,
            running_usage=request.running_usage,
            strip_timings=added.timings,
            withhold_usage=added.usage,
            withheld=request.withheld,
            parts=request.parts,
        )


@dataclass(frozen=True, slots=True)
class _ContextNeed:
    """Tokens of a shared context. The answer is not counted in `most` if it is open-ended."""

    most: int
    likely: int | None
    open_ended: bool


def _may_share_context(model: ServedModel) -> bool:
    """Return True if a backend shares its context between slots. One that is not loaded yet may do so."""
    return any(backend.pool.context or backend.n_ctx is None for backend in model.backends)


def _check_n(request: RequestParameters, backends: list[Backend]) -> None:
    """Raise `ClientError` if the request wants more choices than any backend has slots.

    llama-server generates the choices of one request side by side, each in a slot of its own.
    """
    slots = widest(backends)
    if slots and request.n > slots:
        raise ClientError("invalid_request", f"n may be at most {slots} here", param="n")


def _added_options(backends: list[Backend], request: RequestParameters) -> AddedOptions:
    """Return the options that the gateway needs in the answer and the client did not ask for."""
    states_usage = all(backend.states_usage for backend in backends)
    on_demand = request.stream and request.format.usage_on_demand
    return AddedOptions(
        usage=on_demand and not request.include_usage and not states_usage,
        timings=request.stream and request.running_usage and not request.timings_per_token,
    )


def _requested_slot(
    members: Mapping[str, Any], tenant: TenantIdentity, backends: list[Backend]
) -> dict[str, int]:
    """Return pool name -> the slot that the client asks for in `id_slot`, if its tenant may do so.

    The request gets that slot if it is free and the pool numbers its slots.
    """
    number = members.get("id_slot")
    if not tenant.allow_id_slot or not isinstance(number, int):
        return {}
    return {backend.pool.name: number for backend in backends}
