"""`isolate_cache = true`: which backends have to keep such tenants apart, and whether they can.

What a request leaves in a slot can only be erased in a llama-server that was started for it (the way to that,
`--slot-save-path`, is closed by default), and only the gateway's own work may be in its slots. So it takes
processes of our own.
"""

from collections.abc import Iterator

from slotgate.gateway.settings.document import Settings
from slotgate.gateway.settings.faults import Fault, Finding, SettingsError
from slotgate.gateway.settings.tables import BackendSettings, TenantSettings

__all__ = ["check_isolation_goes_on", "isolating", "isolation_findings"]

CACHE_OPTIONS = ("--cache-ram", "-cram")
"""The prompt cache in main memory: from there one conversation can come back in another's slot."""

PICTURE_OPTIONS = ("--mmproj", "-mm", "--mmproj-url", "-mmu")
"""llama-server refuses to erase the slots of a model that takes pictures."""


def isolating(settings: Settings) -> frozenset[str]:
    """The names of the backends that a tenant may use of whose requests nothing may be left."""
    return frozenset(
        backend.name
        for tenant in settings.tenants
        if tenant.isolate_cache is True
        for backend in settings.backends
        if _may_use(tenant, backend)
    )


def isolation_findings(settings: Settings) -> Iterator[Finding]:
    """Every tenant that wants what one of its backends cannot give."""
    for index, tenant in enumerate(settings.tenants):
        if tenant.isolate_cache is not True:
            continue
        for number, backend in enumerate(settings.backends):
            if _may_use(tenant, backend) and (why := _cannot(backend)):
                yield Finding(
                    ("tenant", index, "isolate_cache"),
                    f'cannot be promised on backend "{backend.name}", {why}: give the tenant models of other '
                    'backends, or write "best-effort"',
                    reads=(("backend", number), ("tenant", index, "models")),
                )


def check_isolation_goes_on(run: Settings, wanted: Settings) -> None:
    """Raises `SettingsError` where the processes that run were not started for what is wanted now."""
    missing = sorted(isolating(wanted) - isolating(run))
    if missing:
        message = f"needs other processes of {', '.join(missing)} than those that run: restart slotgate"
        faults = [
            Fault(f'tenant "{tenant.name}".isolate_cache', message)
            for tenant in wanted.tenants
            if tenant.isolate_cache is True
        ]
        raise SettingsError(tuple(faults))


def _may_use(tenant: TenantSettings, backend: BackendSettings) -> bool:
    """One whose models are asked of it may turn out to serve any."""
    return "*" in tenant.models or not backend.models or not set(tenant.models).isdisjoint(backend.models)


def _cannot(backend: BackendSettings) -> str:
    if not backend.command:
        return "which is no process of the gateway's own"
    if backend.shared:
        return "which is shared with others"
    if backend.slots:
        return "whose slots are counted by hand: one that is not counted would not be erased"
    for options, why in ((CACHE_OPTIONS, ""), (PICTURE_OPTIONS, ", with which no slot can be erased")):
        if any(word.partition("=")[0] in options for word in backend.command):
            return f"whose command sets {options[0]}{why}"
    return ""
