"""The tables that a configuration may repeat: models, tenants, backends and groups. Each has a name."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator

from slotgate.gateway.settings.values import (
    Argument,
    BackendUrl,
    Count,
    Hidden,
    KeyHash,
    Many,
    ModelChoice,
    ModelName,
    Name,
    Seconds,
    SecondsOrZero,
    Table,
    Text,
    TokenBudget,
    Tokens,
    Variable,
    Weight,
)

__all__ = ["BackendSettings", "GroupSettings", "ModelSettings", "TenantKeySettings", "TenantSettings"]


def _isolation(value: object) -> object:
    if isinstance(value, bool) or value == "best-effort":
        return value
    raise ValueError('must be true, false or "best-effort"')


class ModelSettings(Table):
    """`[[model]]`: a model's public name, its aliases, and the backend's name for it."""

    name: ModelName
    aliases: Many[ModelName] = ()
    upstream_name: Text = ""


class TenantKeySettings(Table):
    """`[[tenant.key]]`: one key of a tenant, with a name and an expiry date."""

    name: Name
    hash: Annotated[KeyHash, Hidden()]
    expires: datetime.date | None = None


class TenantSettings(Table):
    """`[[tenant]]`: a user or team with its own keys, share and limits."""

    name: Name
    # Hidden, because an operator may write a key by mistake where its hash belongs.
    key_hashes: Annotated[Many[KeyHash], Hidden()] = ()
    key: Annotated[Many[TenantKeySettings], Hidden()] = ()
    weight: Weight = 1
    models: Many[ModelChoice] = ("*",)
    priority: Literal["interactive", "batch"] = "interactive"
    max_concurrent: Count | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: TokenBudget | None = None
    tokens_per_day: TokenBudget | None = None
    max_tokens_default: Tokens | None = None
    max_tokens_limit: Tokens | None = None
    allow_id_slot: bool = False
    isolate_cache: Annotated[bool | Literal["best-effort"], BeforeValidator(_isolation)] = False


class BackendSettings(Table):
    """`[[backend]]`: one llama-server, which runs at `url` or is started by `command`."""

    name: Name
    url: BackendUrl = ""
    command: Many[Argument] = ()
    models: Many[ModelName] = ()
    slots: Count | None = None
    api_key_env: Annotated[Variable, Hidden()] = ""
    health_interval_s: Seconds = 2
    shared: bool = False
    kv_unified: bool | None = None
    load: Literal["start", "demand"] = "start"
    idle_unload_s: SecondsOrZero = 0
    group: Text = ""
    start_timeout_s: Seconds = 300

    @property
    def base_url(self) -> str | None:
        """The URL that request paths are appended to, or None if the gateway starts the process itself."""
        if self.command:
            return None
        return "http://localhost" if self.unix_socket else self.url.rstrip("/")

    @property
    def unix_socket(self) -> str | None:
        """The path of the backend's Unix socket, or None if it has none."""
        return self.url.removeprefix("unix:") if self.url.startswith("unix:") else None

    def api_key(self, environ: Mapping[str, str]) -> str | None:
        """The backend's API key, or None if it needs none. `load` has checked that the variable is set."""
        return environ[self.api_key_env] if self.api_key_env else None


class GroupSettings(Table):
    """`[[group]]`: backends that share a device, so that only `max_loaded` are loaded at a time."""

    name: Name
    max_loaded: Count = 1
    residence_s: SecondsOrZero = 10.0
    """The least time for which a loaded model keeps its place while it is used."""
    linger_s: SecondsOrZero = 1.0
    """The time for which an unused model keeps its place, in case its client sends another request."""
