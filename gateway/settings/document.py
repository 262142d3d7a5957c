"""The whole configuration as one frozen value."""

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


class Settings(Table):
    """Everything an operator can set. Built with the names of the file, read in the plural.

    >>> Settings(backend=(Backend(name="gpu0", url="http://127.0.0.1:8081"),)).backends[0].name
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
        """Whether requests need no key: there are no tenants."""
        return not self.tenants
