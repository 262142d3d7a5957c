"""`GET /props` and `GET /slots`, answered from the gateway's own state. No backend is asked.

A busy llama-server that is asked for its slots goes on with work whose client has left, so clients must not
be able to ask it through the gateway. Both endpoints are off by default.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from slotgate.gateway.api.chunks import encode
from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.model_catalogue import ModelCatalogue, ServedModel
from slotgate.gateway.http.context import context_of
from slotgate.gateway.http.errors import CapacityError
from slotgate.gateway.http.replies import send_json, send_whole

__all__ = ["Props", "Slots"]

_MODEL_NAMES = ("model_path", "model_alias")
"""Members that hold the backend's own name of the model; the public name replaces it."""


class _ModelHandler:
    """The query parameter `model` names the model. A key that may use one model only can leave it out."""

    def __init__(self, catalogue: ModelCatalogue) -> None:
        self._catalogue = catalogue

    def _model(self, scope: Scope) -> ServedModel:
        asked = parse_qs(scope["query_string"].decode("latin-1"), encoding="utf-8").get("model")
        model = self._catalogue.resolve(asked[0] if asked else None, context_of(scope).tenant)
        context_of(scope).model = model.name
        return model


class Props(_ModelHandler):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        model = self._model(scope)
        backend = next((backend for backend in model.backends if backend.props), None)
        if backend is None:
            raise CapacityError(503, "no_backend", "no backend has described this model yet")
        names = {name: model.name for name in _MODEL_NAMES if name in backend.props}
        total = sum(backend.pool.total for backend in model.backends)
        known = encode({**backend.props, **names, "total_slots": total})
        scrub = backend.scrubber(model.name)
        await send_whole(send, 200, [(b"content-type", b"application/json")], scrub(known))


class Slots(_ModelHandler):
    """List the slots of all backends of the model, numbered in one row, and which of them are busy."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        slots = [slot for backend in self._model(scope).backends for slot in _slots(backend)]
        await send_json(send, 200, [{"id": number, **slot} for number, slot in enumerate(slots)])


def _slots(backend: Backend) -> list[dict[str, Any]]:
    total = backend.pool.total
    busy = total - backend.pool.free
    return [{"n_ctx": backend.n_ctx, "is_processing": number < busy} for number in range(total)]
