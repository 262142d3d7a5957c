"""Checks of names and keys: each is unique, and every name that is referred to exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slotgate.gateway.settings.document import Settings
from slotgate.gateway.settings.faults import Finding
from slotgate.gateway.settings.places import Loc
from slotgate.gateway.settings.wording import suggestion

__all__ = ["naming_findings"]


def naming_findings(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each repeated name or key, and for each model that no backend serves."""
    for kind, names in (
        ("tenant", [tenant.name for tenant in settings.tenants]),
        ("backend", [backend.name for backend in settings.backends]),
        ("group", [group.name for group in settings.groups]),
    ):
        yield from _repeated(
            ((kind, index, "name"), name, f"the name of {kind}[{names.index(name)}]")
            for index, name in enumerate(names)
        )
    yield from _repeated(_public_names(settings))
    yield from _repeated(_key_hashes(settings))
    yield from _keyless_tenants(settings)
    yield from _unserved_models(settings)
    yield from _unknown_models(settings)


def _repeated(uses: Iterable[tuple[Loc, str, str]]) -> Iterator[Finding]:
    """`uses` are triples of place, text and owner.

    Yield a finding for each text that has an owner already.
    """
    first: dict[str, tuple[Loc, str]] = {}
    for loc, text, owner in uses:
        if text in first:
            before, holder = first[text]
            yield Finding(loc, f"is already {holder}", reads=(before,))
        else:
            first[text] = (loc, owner)


def _public_names(settings: Settings) -> Iterator[tuple[Loc, str, str]]:
    for index, model in enumerate(settings.models):
        yield ("model", index, "name"), model.name, f"the name of model[{index}]"
    for index, model in enumerate(settings.models):
        for position, alias in enumerate(model.aliases):
            yield ("model", index, "aliases", position), alias, f'a name of the model "{model.name}"'


def _key_hashes(settings: Settings) -> Iterator[tuple[Loc, str, str]]:
    for position, digest in enumerate(settings.server.operator_key_hashes):
        yield ("server", "operator_key_hashes", position), digest, "the operator's key"
    for index, tenant in enumerate(settings.tenants):
        owner = f'a key of the tenant "{tenant.name}"'
        for position, digest in enumerate(tenant.key_hashes):
            yield ("tenant", index, "key_hashes", position), digest, owner
        for position, key in enumerate(tenant.key):
            yield ("tenant", index, "key", position, "hash"), key.hash, owner


def _keyless_tenants(settings: Settings) -> Iterator[Finding]:
    for index, tenant in enumerate(settings.tenants):
        if not {"key_hashes", "key"} & tenant.model_fields_set:
            yield Finding(
                ("tenant", index),
                "needs key_hashes; an empty list shuts the tenant out",
                reads=(("tenant", index, "key_hashes"), ("tenant", index, "key")),
            )


def _unserved_models(settings: Settings) -> Iterator[Finding]:
    served = _listed_models(settings)
    for index, model in enumerate(settings.models):
        if served is not None and model.name not in served:
            yield Finding(
                ("model", index, "name"), "is not in the models of any backend", reads=(("backend",),)
            )


def _unknown_models(settings: Settings) -> Iterator[Finding]:
    served = _listed_models(settings)
    if served is None:
        return
    known = served | {name for model in settings.models for name in (model.name, *model.aliases)}
    for index, tenant in enumerate(settings.tenants):
        for position, name in enumerate(tenant.models):
            if name != "*" and name not in known:
                yield Finding(
                    ("tenant", index, "models", position),
                    f"no backend serves {name}" + suggestion(name, known),
                    reads=(("backend",), ("model",)),
                )


def _listed_models(settings: Settings) -> set[str] | None:
    """The models in the file, or None if a backend lists none: such a backend could serve any model."""
    if not all(backend.models for backend in settings.backends):
        return None
    return {name for backend in settings.backends for name in backend.models}
