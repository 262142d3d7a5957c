"""`slotgate check`: explain in sentences what a configuration means. Secrets are never shown."""

from __future__ import annotations

from collections.abc import Callable

from slotgate.gateway.settings.document import Settings
from slotgate.gateway.settings.tables import BackendSettings, GroupSettings, TenantSettings

__all__ = ["explain"]

KIB, MIB = 1024, 1024 * 1024


def explain(settings: Settings) -> str:
    """Explain the listener, the tenants and operators, the backends with their models, and all limits."""
    paragraphs = [
        "\n".join([title, *(f"  {line}" for line in lines(settings))]) for title, lines in PARAGRAPHS.items()
    ]
    return "\n\n".join(paragraphs) + "\n"


def _listening(settings: Settings) -> list[str]:
    server = settings.server
    scheme = "https" if server.tls_cert else "http"
    host = f"[{server.host}]" if ":" in server.host else server.host
    reach = "this machine only" if server.is_loopback else "other machines too"
    body = _size(server.max_body_bytes)
    return [
        f"{scheme}://{host}:{server.port}, reachable from {reach}",
        f"at most {server.max_connections} connections; request bodies up to {body}",
        f"web pages of other sites that may call it: {', '.join(server.cors_origins) or 'none (no CORS)'}",
        f"after SIGTERM, running streams have {_time(server.shutdown_grace_s)} to finish",
    ]


def _access(settings: Settings) -> list[str]:
    lines = [_tenant(tenant) for tenant in settings.tenants]
    if settings.anonymous:
        hosts = ", ".join(["loopback names", *settings.server.allowed_hosts])
        lines = [f"everyone who can reach it, without a key; accepted in the Host header: {hosts}"]
    lines.append(f"pictures, audio and video: {_media(settings.server.allowed_media_hosts)}")
    operators = len(settings.server.operator_key_hashes)
    if operators:
        return [*lines, f"operator: {_count(operators, 'key')}, for /metrics and /admin"]
    return [*lines, "no operator key: /metrics and /admin answer 404"]


def _media(hosts: tuple[str, ...]) -> str:
    if not hosts:
        return "only inside the request; URLs that a backend would fetch are refused"
    where = "every host, also of its own network" if "*" in hosts else ", ".join(hosts)
    return f"inside the request, or as URLs that backends fetch from {where}"


def _tenant(tenant: TenantSettings) -> str:
    keys = len(tenant.key_hashes) + len(tenant.key)
    if not keys:
        return f"{tenant.name}: shut out, because it has no key"
    models = "all models" if "*" in tenant.models else ", ".join(tenant.models) or "no model"
    parts = [_count(keys, "key"), models, tenant.priority, f"weight {tenant.weight:g}"]
    if tenant.max_concurrent:
        parts.append(f"at most {tenant.max_concurrent} requests at a time")
    rates = [
        (tenant.requests_per_minute, "requests per minute"),
        (tenant.tokens_per_minute, "tokens per minute"),
        (tenant.tokens_per_day, "tokens per day"),
    ]
    parts += [f"{limit} {what}" for limit, what in rates if limit]
    if tenant.max_tokens_limit:
        parts.append(f"at most {tenant.max_tokens_limit} tokens per answer")
    return f"{tenant.name}: {'; '.join(parts)}"


def _serving(settings: Settings) -> list[str]:
    return (
        [*(_backend(backend) for backend in settings.backends), *_contexts(settings)]
        + [
            f"{model.name} also answers to {', '.join(model.aliases)}"
            for model in settings.models
            if model.aliases
        ]
        + [_group(group) for group in settings.groups]
    )


def _backend(backend: BackendSettings) -> str:
    where = f"at {backend.url}" if backend.url else f"started as {backend.command[0]}"
    models = ", ".join(backend.models) or "the models that it reports"
    slots = _count(backend.slots, "slot") if backend.slots else "as many slots as it reports"
    return f"{backend.name} {where}: {models}; {slots}{_loading(backend)}"


def _contexts(settings: Settings) -> list[str]:
    """Explain which backends share one context between slots, as far as the configuration says it."""
    lines = [
        f"{backend.name}: its slots {'share one context' if backend.kv_unified else 'have a context each'}"
        for backend in settings.backends
        if backend.kv_unified is not None
    ]
    unknown = [backend.name for backend in settings.backends if backend.kv_unified is None]
    if unknown:
        lines.append(
            f"{', '.join(unknown)}: llama-server's log or command says if its slots share one context; on "
            "another machine this is assumed (kv_unified = true or false states it)"
        )
    return lines


def _loading(backend: BackendSettings) -> str:
    parts = ["loaded at the first request"] if backend.load == "demand" else []
    if backend.group:
        parts.append(f"in the group {backend.group}")
    if backend.idle_unload_s:
        parts.append(f"unloaded after {_time(backend.idle_unload_s)} without a request")
    return "".join(f"; {part}" for part in parts)


def _group(group: GroupSettings) -> str:
    return (
        f"group {group.name}: at most {group.max_loaded} loaded at a time, each for at least "
        f"{group.residence_s:g} s while it is used"
    )


def _queue(settings: Settings) -> list[str]:
    admission = settings.admission
    share = "" if settings.anonymous else f", {admission.max_queue_per_tenant} of them of one tenant"
    bodies = _size(admission.max_queue_bytes)
    interactive, batch = _time(admission.queue_timeout_s), _time(admission.batch_queue_timeout_s)
    return [
        f"at most {admission.max_queue} requests per model{share}; {bodies} of request bodies in total",
        f"each request waits at most {interactive}, and a batch request at most {batch}",
        f"an abandoned slot is reused after {_time(admission.quarantine_max_s)} if /slots cannot be read",
        _retry(settings),
    ]


def _retry(settings: Settings) -> str:
    if settings.admission.retry == "off":
        return "a request is lost if its backend dies under it"
    return (
        "a request whose backend dies before a byte was sent is tried once more, unless it may be the cause"
    )


def _streaming(settings: Settings) -> list[str]:
    streaming = settings.streaming
    every = _time(streaming.keepalive_interval_s)
    keepalive = f"a keep-alive after {every} of silence, as {streaming.keepalive}"
    own, total = _size(streaming.stream_buffer_bytes), _size(streaming.stream_buffers_total_bytes)
    return [
        "no keep-alives" if streaming.keepalive == "off" else keepalive,
        f"a buffer of {own} for each slow client, {total} for all together",
        f"a client that reads nothing is disconnected after {_time(streaming.client_stall_timeout_s)}",
    ]


def _timeouts(settings: Settings) -> list[str]:
    timeouts = settings.timeouts
    return [
        f"a connection within {_time(timeouts.connect_s)}",
        f"the first event within {_time(timeouts.first_byte_s)}",
        f"each further event within {_time(timeouts.idle_s)}",
        f"the whole answer within {_time(timeouts.total_s)}",
    ]


def _records(settings: Settings) -> list[str]:
    if settings.usage.store == "none":
        return ["no usage records"]
    return [f"one usage record for each request that held a slot, in {settings.usage.place}"]


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
    "Access": _access,
    "Serves": _serving,
    "Queue": _queue,
    "Streams": _streaming,
    "Waits for a backend": _timeouts,
    "Records": _records,
}
