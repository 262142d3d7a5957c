"""`POST /v1/embeddings`: an array of inputs is one request that uses many slots.

llama-server spreads the inputs over its slots and defers the rest, so the request is admitted with the
width `min(inputs, slots)`: only inputs of one request may wait inside the backend, and only while that
request holds all of its slots.
"""

from __future__ import annotations

from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from admission import Demand
from gateway.admit import priority_of
from gateway.body import read_body
from gateway.chat import BodyParser
from gateway.chunks import Identity
from gateway.context import RequestContext, context_of
from gateway.endpoints.served import check_served, upstream_headers, widest
from gateway.errors import ClientError
from gateway.fleet import Fleet
from gateway.generation import Generation
from gateway.settings import Settings
from gateway.whole import WholeAnswer

__all__ = ["Embeddings", "count_inputs"]

PATH = "/v1/embeddings"
_BYTES_PER_TOKEN = 4


class Embeddings:
    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self._settings = settings
        self._fleet = fleet
        self._bodies = BodyParser()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._settings.server
        body = await read_body(
            scope, receive, max_bytes=server.max_body_bytes, timeout_s=server.body_timeout_s
        )
        generation = await self._prepare(scope, context_of(scope), body)
        await WholeAnswer(self._settings, self._fleet, generation).serve(receive, send)

    async def _prepare(self, scope: Scope, context: RequestContext, body: bytes) -> Generation:
        parsed = await self._bodies.parse(body)
        asked = parsed.get("model")
        if asked is not None and not isinstance(asked, str):
            raise ClientError("invalid_request", "model must be a string", param="model")
        inputs = count_inputs(parsed)
        model = self._fleet.catalogue.resolve(asked, context.tenant)
        context.model = model.name
        check_served(model.backends)
        demand = Demand(
            tenant=context.tenant.name,
            model=model.name,
            width=min(inputs, max(1, widest(model.backends))),
            cost=len(body) / _BYTES_PER_TOKEN,
            priority=priority_of(scope, context.tenant),
            body_bytes=len(body),
        )
        changes: dict[str, bytes | None] = {}
        if model.upstream_name is not None and asked != model.upstream_name:
            changes["model"] = orjson.dumps(model.upstream_name)
        return Generation(
            context=context,
            path=PATH,
            body=await self._bodies.splice(body, changes),
            headers=upstream_headers(scope, context),
            identity=Identity(id="", created=0, model=asked or model.name),
            demand=demand,
        )


def count_inputs(parsed: dict[str, Any]) -> int:
    """How many inputs a request has: a text or a list of token numbers is one. Raises `ClientError`."""
    given = parsed.get("input")
    if isinstance(given, str) and given:
        return 1
    if isinstance(given, list) and given:
        if all(isinstance(part, int) and not isinstance(part, bool) for part in given):
            return 1
        if all(isinstance(part, (str, list)) and part for part in given):
            return len(given)
    message = "input must be a text, a list of token numbers, or a list of such, and not empty"
    raise ClientError("invalid_request", message, param="input")
