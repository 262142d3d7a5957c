"""The configuration: frozen values read from TOML and the environment, validated together."""

from slotgate.gateway.settings.document import Settings
from slotgate.gateway.settings.explanation import explain
from slotgate.gateway.settings.faults import Fault, SettingsError
from slotgate.gateway.settings.isolation import check_isolation_goes_on, isolating
from slotgate.gateway.settings.loading import load, parse
from slotgate.gateway.settings.not_yet import NOT_YET
from slotgate.gateway.settings.sections import (
    AdmissionSettings,
    ServerSettings,
    StreamingSettings,
    TimeoutsSettings,
    UsageSettings,
)
from slotgate.gateway.settings.tables import (
    BackendSettings,
    GroupSettings,
    ModelSettings,
    TenantKeySettings,
    TenantSettings,
)

__all__ = [
    "NOT_YET",
    "AdmissionSettings",
    "BackendSettings",
    "Fault",
    "GroupSettings",
    "ModelSettings",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "StreamingSettings",
    "TenantKeySettings",
    "TenantSettings",
    "TimeoutsSettings",
    "UsageSettings",
    "check_isolation_goes_on",
    "explain",
    "isolating",
    "load",
    "parse",
]
