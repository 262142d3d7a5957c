"""The gateway's own list of models: public names, aliases, and which backends serve what.

A public name comes from a `[[model]]` table, from a backend's `models`, or from the backend's own answer. If
a backend answers with a path, only the name of the file is used, because no path of the machine leaves the
gateway.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PureWindowsPath
from typing import Any

from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.http.context import TenantIdentity
from slotgate.gateway.http.errors import CapacityError, ClientError
from slotgate.gateway.settings import ModelSettings

__all__ = ["ModelCatalogue", "ServedModel", "public_name"]

_QUOTED_CHARACTERS = 200


@dataclass(slots=True)
class ServedModel:
    name: str
    aliases: tuple[str, ...] = ()
    upstream_name: str | None = None
    """The name that the backend uses. None if it is the name that the client wrote."""
    backends: list[Backend] = field(default_factory=list)


class ModelCatalogue:
    """Rebuilt as a whole whenever a backend's models become known; looked up by name."""

    def __init__(self, configured: Iterable[ModelSettings] = ()) -> None:
        self._configured = tuple(configured)
        self._backends: dict[Backend, tuple[str, ...]] = {}
        """Backend -> its configured public names. Empty if the backend is asked for its models."""
        self.models: dict[str, ServedModel] = {}
        self._by_any_name: dict[str, ServedModel] = {}

    def __repr__(self) -> str:
        return f"<ModelCatalogue {', '.join(self.models) or 'empty'}>"

    def configure(self, models: Iterable[ModelSettings]) -> None:
        self._configured = tuple(models)

    def add(self, backend: Backend, names: tuple[str, ...] = ()) -> None:
        """Add a backend. With `names` it serves exactly these public names, whatever its own answer says."""
        self._backends[backend] = names

    def remove(self, backend: Backend) -> None:
        del self._backends[backend]

    def rebuild(self) -> None:
        models = {
            model.name: ServedModel(model.name, model.aliases, model.upstream_name or None)
            for model in self._configured
        }
        upstream_names = {
            model.upstream_name: model.name for model in self._configured if model.upstream_name
        }
        for backend, names in self._backends.items():
            for name in names:
                models.setdefault(name, ServedModel(name)).backends.append(backend)
            if not names:
                for said in backend.models:
                    name = upstream_names.get(said) or public_name(said)
                    models.setdefault(name, ServedModel(name, upstream_name=said)).backends.append(backend)
        self.models = models
        self._by_any_name = {alias: model for model in models.values() for alias in model.aliases}
        self._by_any_name |= models

    def resolve(self, name: str | None, tenant: TenantIdentity) -> ServedModel:
        """Return the model of a request. Raises `ClientError` 400, 403 or 404, `CapacityError` 503."""
        if name is None:
            return self._only_one(tenant)
        model = self._by_any_name.get(name)
        if model is None:
            self._check_complete()
            message = f"the model {_quoted(name)} does not exist here"
            raise ClientError("model_not_found", message, status=404, param="model")
        if not _may_use(tenant, model):
            message = f"this key may not use the model {name!r}"
            raise ClientError(
                "model_not_allowed", message, status=403, kind="permission_error", param="model"
            )
        return model

    def listing(self, tenant: TenantIdentity) -> list[dict[str, Any]]:
        """Return the entries of `/v1/models` that this tenant may use, aliases included."""
        usable = (name for name, model in self._by_any_name.items() if _may_use(tenant, model))
        return [self.entry(name) for name in sorted(usable)]

    def entry(self, name: str) -> dict[str, Any]:
        model = self._by_any_name[name]
        contexts = [backend.n_ctx for backend in model.backends if backend.n_ctx]
        meta = {"n_ctx": min(contexts)} if contexts else {}
        return {"id": name, "object": "model", "created": 0, "owned_by": "slotgate", "meta": meta}

    def _check_complete(self) -> None:
        """Raise `CapacityError` while a backend has not yet said what it serves."""
        silent = [
            backend.name for backend, names in self._backends.items() if not names and not backend.models
        ]
        if silent:
            message = f"the backend {silent[0]} has not reported its models yet"
            raise CapacityError(503, "no_backend", message, retry_after_s=2.0)

    def _only_one(self, tenant: TenantIdentity) -> ServedModel:
        usable = [model for model in self.models.values() if _may_use(tenant, model)]
        if len(usable) == 1:
            return usable[0]
        self._check_complete()
        names = ", ".join(model.name for model in usable) or "none yet"
        raise ClientError("invalid_request", f"model must be given: one of {names}", param="model")


def public_name(said: str) -> str:
    """Return the public name for a backend's own name: without the path and the ending of the file."""
    path = PureWindowsPath(said)  # which takes both kinds of slash
    return path.name.removesuffix(".gguf") if path.suffix == ".gguf" or path.root or path.drive else said


def _quoted(name: str) -> str:
    """Return the name that a client sent, quoted and cut to a length that fits into a message."""
    return repr(name if len(name) <= _QUOTED_CHARACTERS else f"{name[:_QUOTED_CHARACTERS]}…")


def _may_use(tenant: TenantIdentity, model: ServedModel) -> bool:
    return any(tenant.may_use(name) for name in (model.name, *model.aliases))
