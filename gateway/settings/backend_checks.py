"""Checks of backends: each can be reached or started, and no llama-server is listed twice."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from slotgate.gateway.settings.document import Settings
from slotgate.gateway.settings.faults import Finding
from slotgate.gateway.settings.places import Loc
from slotgate.gateway.settings.tables import BackendSettings

__all__ = ["OF_COMMANDS", "backend_findings"]

OF_COMMANDS = ("load", "idle_unload_s", "group", "start_timeout_s")
"""Settings that apply only to a process that the gateway starts."""

_ANY_ADDRESS = ("0.0.0.0", "::")
"""A gateway that listens on one of these is reached at every address of its machine."""
OUR_ARGUMENTS = ("--host", "--port", "--api-key", "--api-key-file")
"""Arguments that the gateway adds itself or passes by environment. Given twice, they could disagree."""


def backend_findings(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings of all backends. Their API keys are looked up in `environ`."""
    if not settings.backends:
        yield Finding(("backend",), "at least one [[backend]] is needed")
    for index, backend in enumerate(settings.backends):
        yield from _way_to_it(("backend", index), backend)
        yield from _arguments(("backend", index, "command"), backend)
        yield from _key(("backend", index, "api_key_env"), backend, environ)
        yield from _group(("backend", index, "group"), backend, settings)
        yield from _demand(("backend", index), backend)
        yield from _alias_for_name(index, backend, settings)
    yield from _same_server(settings)
    yield from _not_itself(settings)
    yield from _room(settings)


def _way_to_it(loc: Loc, backend: BackendSettings) -> Iterator[Finding]:
    reads: tuple[Loc, ...] = ((*loc, "url"), (*loc, "command"))
    if bool(backend.url) == bool(backend.command):
        yield Finding(loc, "needs either url or command, not both", reads)
    elif backend.url:
        for key in OF_COMMANDS:
            if key in backend.model_fields_set:
                yield Finding((*loc, key), "applies only to a backend with a command, not with a url", reads)


def _arguments(loc: Loc, backend: BackendSettings) -> Iterator[Finding]:
    for position, argument in enumerate(backend.command):
        name = argument.partition("=")[0]
        if name in OUR_ARGUMENTS:
            reason = "keys belong in api_key_env" if "key" in name else "the gateway chooses it"
            yield Finding((*loc, position), f"must not have {name}: {reason}")


def _key(loc: Loc, backend: BackendSettings, environ: Mapping[str, str]) -> Iterator[Finding]:
    if not backend.api_key_env:
        return
    key = environ.get(backend.api_key_env, "")
    if not key:
        # A name in lower case may be the key itself, which must not be shown.
        name = f" {backend.api_key_env}" if backend.api_key_env.isupper() else ""
        yield Finding(loc, f"the environment variable{name} is not set")
    elif not (key.isascii() and key.isprintable()) or key != key.strip():
        yield Finding(
            loc,
            f"the environment variable {backend.api_key_env} has a value that no header can carry",
        )


def _group(loc: Loc, backend: BackendSettings, settings: Settings) -> Iterator[Finding]:
    if backend.group and backend.group not in {group.name for group in settings.groups}:
        yield Finding(loc, "is not the name of a [[group]]", reads=(("group",),))


def _demand(loc: Loc, backend: BackendSettings) -> Iterator[Finding]:
    if backend.load == "demand" and backend.command and not backend.models:
        yield Finding(
            (*loc, "models"),
            'is needed with load = "demand": a process that does not run cannot be asked for its models',
            reads=((*loc, "load"),),
        )


def _room(settings: Settings) -> Iterator[Finding]:
    """Check that a group does not start more members than it may load: they would push each other out."""
    for index, group in enumerate(settings.groups):
        members = [backend for backend in settings.backends if backend.group == group.name]
        starting = [backend.name for backend in members if backend.load == "start"]
        if len(starting) > group.max_loaded:
            yield Finding(
                ("group", index, "max_loaded"),
                f'is {group.max_loaded}, but {len(starting)} backends of the group have load = "start": '
                f"{', '.join(starting)}",
                reads=(("backend",),),
            )


def _alias_for_name(index: int, backend: BackendSettings, settings: Settings) -> Iterator[Finding]:
    aliases = {alias: model.name for model in settings.models for alias in model.aliases}
    for position, name in enumerate(backend.models):
        if name in aliases:
            yield Finding(
                ("backend", index, "models", position),
                f'is an alias: write the name of its model, "{aliases[name]}"',
                reads=(("model",),),
            )


def _not_itself(settings: Settings) -> Iterator[Finding]:
    """Check that no backend is this gateway: each request would come back to it."""
    own = settings.server.host.lower()
    for index, backend in enumerate(settings.backends):
        if not backend.url or backend.url.startswith("unix:"):
            continue
        address = urlsplit(backend.url)
        host = (address.hostname or "").lower()
        port = address.port or (443 if address.scheme == "https" else 80)
        on_this_machine = _is_loopback(host) and (own in _ANY_ADDRESS or _is_loopback(own))
        if port == settings.server.port and (host == own or on_this_machine or host in _ANY_ADDRESS):
            yield Finding(
                ("backend", index, "url"),
                "is the address of this gateway",
                reads=(("server", "host"), ("server", "port")),
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _same_server(settings: Settings) -> Iterator[Finding]:
    """Check that no two backends are one llama-server: each would hand out all its slots."""
    first: dict[str, int] = {}
    for index, backend in enumerate(settings.backends):
        if not backend.url:
            continue
        before = first.setdefault(backend.url.rstrip("/").lower(), index)
        if before != index:
            yield Finding(
                ("backend", index, "url"),
                f"is already the url of backend[{before}]",
                reads=(("backend", before, "url"),),
            )
