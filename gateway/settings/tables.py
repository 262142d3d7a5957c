"""The repeated tables of the configuration: models, tenants, backends and groups, each known by its name."""

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


def _isolation(value: object) -> object:
    if isinstance(value, bool) or value == "best-effort":
        return value
    raise ValueError('must be true, false or "best-effort"')


class ModelSettings(Table):
    """`[[model]]`: a public name, what else it answers to, and what the backend calls it."""

    name: ModelName
    aliases: Many[ModelName] = ()
    upstream_name: Text = ""


class TenantKeySettings(Table):
    """`[[tenant.key]]`: one key of a tenant, with a name and an end."""

    name: Name
    hash: Annotated[KeyHash, Hidden()]
    expires: datetime.date | None = None


class TenantSettings(Table):
    """`[[tenant]]`: who may enter, with which keys, and how much of the slots is theirs."""

    name: Name
    key_hashes: Annotated[Many[KeyHash], Hidden()] = ()
    key: Annotated[
        Many[TenantKeySettings], Hidden()
    ] = ()  # somebody may write the key itself, here and below
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
    """`[[backend]]`: one llama-server, found at `url` or started by `command`."""

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
        """What request paths are appended to; `None` where the gateway starts the process on its own port."""
        if self.command:
            return None
        return "http://localhost" if self.unix_socket else self.url.rstrip("/")

    @property
    def unix_socket(self) -> str | None:
        """The path of the backend's socket, if it is reached by one."""
        return self.url.removeprefix("unix:") if self.url.startswith("unix:") else None

    def api_key(self, environ: Mapping[str, str]) -> str | None:
        """The backend's own key; `load` has made sure that the variable it comes from is set."""
        return environ[self.api_key_env] if self.api_key_env else None


class GroupSettings(Table):
    """`[[group]]`: backends of which only so many are loaded at a time."""

    name: Name
    max_loaded: Count = 1
