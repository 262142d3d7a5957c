"""What a configuration means, in the words of somebody who has to answer for it. Names no secret."""

from collections.abc import Callable

from slotgate.gateway.settings.document import Settings
from slotgate.gateway.settings.tables import BackendSettings, GroupSettings, TenantSettings

KIB, MIB = 1024, 1024 * 1024


def explain(settings: Settings) -> str:
    """Where the gateway listens, who may enter, who serves what, and what bounds waiting and streams."""
    paragraphs = [
        "\n".join([title, *(f"  {line}" for line in lines(settings))]) for title, lines in PARAGRAPHS.items()
    ]
    return "\n\n".join(paragraphs) + "\n"


def _listening(settings: Settings) -> list[str]:
    server = settings.server
    scheme = "https" if server.tls_cert else "http"
    host = f"[{server.host}]" if ":" in server.host else server.host
    reach = "from this machine only" if server.is_loopback else "from other machines too"
    body = _size(server.max_body_bytes)
    return [
        f"{scheme}://{host}:{server.port}, {reach}",
        f"at most {server.max_connections} connections; a request's body up to {body}",
        f"web pages may call it from: {', '.join(server.cors_origins) or 'nowhere else (no CORS)'}",
        f"on SIGTERM running streams have {_time(server.shutdown_grace_s)} to finish",
    ]


def _entering(settings: Settings) -> list[str]:
    lines = [_tenant(tenant) for tenant in settings.tenants]
    if settings.anonymous:
        hosts = ", ".join(["loopback names", *settings.server.allowed_hosts])
        lines = [f"everybody who reaches it, without a key; as Host it accepts {hosts}"]
    operators = len(settings.server.operator_key_hashes)
    if operators:
        return [*lines, f"operator: {_count(operators, 'key')}, for /metrics and /admin"]
    return [*lines, "no operator key: /metrics and /admin answer 404"]


def _tenant(tenant: TenantSettings) -> str:
    keys = len(tenant.key_hashes) + len(tenant.key)
    if not keys:
        return f"{tenant.name}: shut out, it has no key"
    models = "all models" if "*" in tenant.models else ", ".join(tenant.models) or "no model"
    parts = [_count(keys, "key"), models, tenant.priority, f"weight {tenant.weight:g}"]
    if tenant.max_concurrent:
        parts.append(f"{tenant.max_concurrent} at a time")
    rates = [
        (tenant.requests_per_minute, "requests a minute"),
        (tenant.tokens_per_minute, "tokens a minute"),
        (tenant.tokens_per_day, "tokens a day"),
    ]
    parts += [f"{limit} {what}" for limit, what in rates if limit]
    if tenant.max_tokens_limit:
        parts.append(f"up to {tenant.max_tokens_limit} tokens an answer")
    return f"{tenant.name}: {'; '.join(parts)}"


def _serving(settings: Settings) -> list[str]:
    return (
        [_backend(backend) for backend in settings.backends]
        + [
            f"{model.name} also answers to {', '.join(model.aliases)}"
            for model in settings.models
            if model.aliases
        ]
        + [_group(group) for group in settings.groups]
    )


def _backend(backend: BackendSettings) -> str:
    where = f"at {backend.url}" if backend.url else f"started as {backend.command[0]}"
    models = ", ".join(backend.models) or "the models it names itself"
    slots = _count(backend.slots, "slot") if backend.slots else "as many slots as it says"
    return f"{backend.name} {where}: {models}; {slots}{_loading(backend)}"


def _loading(backend: BackendSettings) -> str:
    parts = ["loaded at the first request"] if backend.load == "demand" else []
    if backend.group:
        parts.append(f"shares the room of {backend.group}")
    if backend.idle_unload_s:
        parts.append(f"unloaded after {_time(backend.idle_unload_s)} without a request")
    return "".join(f"; {part}" for part in parts)


def _group(group: GroupSettings) -> str:
    return f"group {group.name}: at most {group.max_loaded} loaded at a time"


def _waiting(settings: Settings) -> list[str]:
    admission = settings.admission
    share = "" if settings.anonymous else f", {admission.max_queue_per_tenant} of one tenant"
    bodies = _size(admission.max_queue_bytes)
    return [
        f"at most {admission.max_queue} requests a model{share}; {bodies} of bodies in all",
        f"each for at most {_time(admission.queue_timeout_s)}",
        f"a slot in doubt is out for {_time(admission.quarantine_max_s)} if its backend shows no slots",
    ]


def _streaming(settings: Settings) -> list[str]:
    streaming = settings.streaming
    every = _time(streaming.keepalive_interval_s)
    signs = f"a sign of life every {every} as {streaming.keepalive}"
    own, total = _size(streaming.stream_buffer_bytes), _size(streaming.stream_buffers_total_bytes)
    return [
        "no signs of life of our own" if streaming.keepalive == "off" else signs,
        f"a slow reader has {own} of buffer, all of them {total}",
        f"a reader that stands still is cut after {_time(streaming.client_stall_timeout_s)}",
    ]


def _patience(settings: Settings) -> list[str]:
    timeouts = settings.timeouts
    return [
        f"connected within {_time(timeouts.connect_s)}",
        f"the first event within {_time(timeouts.first_byte_s)}",
        f"each further event within {_time(timeouts.idle_s)}",
        f"the whole answer within {_time(timeouts.total_s)}",
    ]


def _recording(settings: Settings) -> list[str]:
    if settings.usage.store == "none":
        return ["nothing: usage is not recorded"]
    return [f"what each request used that held a slot, in {settings.usage.place}"]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _time(seconds: float) -> str:
    return f"{seconds:g} s"


def _size(number: int) -> str:
    if number >= MIB:
        return f"{number / MIB:g} MiB"
    return f"{number / KIB:g} KiB" if number >= KIB else f"{number} bytes"


PARAGRAPHS: dict[str, Callable[[Settings], list[str]]] = {
    "Listens": _listening,
    "Lets in": _entering,
    "Serves": _serving,
    "Waiting": _waiting,
    "Streams": _streaming,
    "Expects of a backend": _patience,
    "Records": _recording,
}
