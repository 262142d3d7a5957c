"""The configuration: frozen values, read from a TOML file and the environment and validated together."""

from __future__ import annotations

from slotgate.gateway.settings.document import Settings
from slotgate.gateway.settings.explanation import explain
from slotgate.gateway.settings.faults import SettingsError, SettingsFault
from slotgate.gateway.settings.isolation import check_isolation_goes_on, isolating
from slotgate.gateway.settings.loading import load, parse
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
from slotgate.gateway.settings.unsupported import UNSUPPORTED, WITHOUT_EFFECT

__all__ = [
    "UNSUPPORTED",
    "WITHOUT_EFFECT",
    "AdmissionSettings",
    "BackendSettings",
    "GroupSettings",
    "ModelSettings",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "SettingsFault",
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
