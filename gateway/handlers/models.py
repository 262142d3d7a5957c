"""`GET /v1/models` and `/v1/models/{id}`: the models that the request's key may use."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from slotgate.gateway.backends.model_catalogue import ModelCatalogue
from slotgate.gateway.http.context import context_of
from slotgate.gateway.http.replies import send_json

__all__ = ["ListModels", "OneModel"]


class ListModels:
    def __init__(self, catalogue: ModelCatalogue) -> None:
        self._catalogue = catalogue

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        entries = self._catalogue.listing(context_of(scope).tenant)
        await send_json(send, 200, {"object": "list", "data": entries})


class OneModel:
    def __init__(self, catalogue: ModelCatalogue) -> None:
        self._catalogue = catalogue

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["id"]
        self._catalogue.resolve(name, context_of(scope).tenant)
        await send_json(send, 200, self._catalogue.entry(name))
