"""The whole configuration as one frozen value."""

from pydantic import Field

from slotgate.gateway.settings.sections import Admission, Server, Streaming, Timeouts, Usage
from slotgate.gateway.settings.tables import Backend, Group, Model, Tenant
from slotgate.gateway.settings.values import Many, Table


class Settings(Table):
    """Everything an operator can set. Built with the names of the file, read in the plural.

    >>> Settings(backend=(Backend(name="gpu0", url="http://127.0.0.1:8081"),)).backends[0].name
    'gpu0'
    """

    server: Server = Server()
    admission: Admission = Admission()
    streaming: Streaming = Streaming()
    timeouts: Timeouts = Timeouts()
    usage: Usage = Usage()
    models: Many[Model] = Field(default=(), alias="model")
    tenants: Many[Tenant] = Field(default=(), alias="tenant")
    backends: Many[Backend] = Field(default=(), alias="backend")
    groups: Many[Group] = Field(default=(), alias="group")

    @property
    def anonymous(self) -> bool:
        """Whether requests need no key: there are no tenants."""
        return not self.tenants
