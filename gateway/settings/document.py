"""The whole configuration as one frozen value."""

from __future__ import annotations

from pydantic import Field

from slotgate.gateway.settings.sections import (
    AdmissionSettings,
    ServerSettings,
    StreamingSettings,
    TimeoutsSettings,
    UsageSettings,
)
from slotgate.gateway.settings.tables import BackendSettings, GroupSettings, ModelSettings, TenantSettings
from slotgate.gateway.settings.values import Many, Table

__all__ = ["Settings"]


class Settings(Table):
    """All settings. The constructor takes the names of the file; the members of repeated tables are plural.

    >>> Settings(backend=(BackendSettings(name="gpu0", url="http://127.0.0.1:8081"),)).backends[0].name
    'gpu0'
    """

    server: ServerSettings = ServerSettings()
    admission: AdmissionSettings = AdmissionSettings()
    streaming: StreamingSettings = StreamingSettings()
    timeouts: TimeoutsSettings = TimeoutsSettings()
    usage: UsageSettings = UsageSettings()
    models: Many[ModelSettings] = Field(default=(), alias="model")
    tenants: Many[TenantSettings] = Field(default=(), alias="tenant")
    backends: Many[BackendSettings] = Field(default=(), alias="backend")
    groups: Many[GroupSettings] = Field(default=(), alias="group")

    @property
    def anonymous(self) -> bool:
        """True if requests need no key, because there are no tenants."""
        return not self.tenants
