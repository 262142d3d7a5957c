"""`isolate_cache = true`: find the backends that must isolate tenants, and check that they can.

llama-server erases a slot only if it was started with `--slot-save-path`. And a slot may be erased only if no
other program uses it. So isolation needs llama-servers that the gateway starts itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from slotgate.gateway.settings.document import Settings
from slotgate.gateway.settings.faults import Finding, SettingsError, SettingsFault
from slotgate.gateway.settings.tables import BackendSettings, TenantSettings

__all__ = ["check_isolation_goes_on", "isolating", "isolation_findings"]

CACHE_OPTIONS = ("--cache-ram", "-cram")
"""They switch on the prompt cache in main memory, which can bring a prompt back in another slot."""

PICTURE_OPTIONS = ("--mmproj", "-mm", "--mmproj-url", "-mmu")
"""With them llama-server refuses to erase slots, since these may hold pictures."""


def isolating(settings: Settings) -> frozenset[str]:
    """The names of the backends that a tenant with `isolate_cache = true` may use."""
    return frozenset(
        backend.name
        for tenant in settings.tenants
        if tenant.isolate_cache is True
        for backend in settings.backends
        if _may_use(tenant, backend)
    )


def isolation_findings(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each tenant with `isolate_cache = true` and a backend that cannot isolate."""
    for index, tenant in enumerate(settings.tenants):
        if tenant.isolate_cache is not True:
            continue
        for number, backend in enumerate(settings.backends):
            if _may_use(tenant, backend) and (why := _cannot(backend)):
                yield Finding(
                    ("tenant", index, "isolate_cache"),
                    f'is not possible on backend "{backend.name}", {why}: give the tenant models of other '
                    'backends, or set it to "best-effort"',
                    reads=(("backend", number), ("tenant", index, "models")),
                )


def check_isolation_goes_on(unable: Set[str], wanted: Settings) -> None:
    """Raise `SettingsError` if `wanted` needs isolation on backends that were made without it.

    `unable` are the names of these backends.
    """
    missing = sorted(isolating(wanted) & unable)
    if missing:
        message = f"needs a new process of {', '.join(missing)}: restart slotgate"
        faults = [
            SettingsFault(f'tenant "{tenant.name}".isolate_cache', message)
            for tenant in wanted.tenants
            if tenant.isolate_cache is True
        ]
        raise SettingsError(tuple(faults))


def _may_use(tenant: TenantSettings, backend: BackendSettings) -> bool:
    """Return True if the tenant may get to the backend.

    A backend that lists no models could serve any model.
    """
    return "*" in tenant.models or not backend.models or not set(tenant.models).isdisjoint(backend.models)


def _cannot(backend: BackendSettings) -> str:
    if not backend.command:
        return "which the gateway does not start itself"
    if backend.shared:
        return "which is shared with other programs"
    if backend.slots:
        return "which sets slots: a slot that is not counted would not be erased"
    for options, why in ((CACHE_OPTIONS, ""), (PICTURE_OPTIONS, ", and then llama-server erases no slot")):
        if any(word.partition("=")[0] in options for word in backend.command):
            return f"whose command sets {options[0]}{why}"
    return ""
