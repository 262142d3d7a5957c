"""The configuration: frozen values read from TOML and the environment, validated together."""

from gateway.settings.document import Settings
from gateway.settings.explanation import explain
from gateway.settings.faults import Fault, SettingsError
from gateway.settings.isolation import check_isolation_goes_on, isolating
from gateway.settings.loading import load, parse
from gateway.settings.not_yet import NOT_YET
from gateway.settings.sections import Admission, Server, Streaming, Timeouts, Usage
from gateway.settings.tables import Backend, Group, Model, Tenant, TenantKey

__all__ = [
    "NOT_YET",
    "Admission",
    "Backend",
    "Fault",
    "Group",
    "Model",
    "Server",
    "Settings",
    "SettingsError",
    "Streaming",
    "Tenant",
    "TenantKey",
    "Timeouts",
    "Usage",
    "check_isolation_goes_on",
    "explain",
    "isolating",
    "load",
    "parse",
]
