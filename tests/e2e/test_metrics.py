"""The Prometheus metrics after real requests: names and labels that alerts rely on."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slotgate.gateway.auth.keys import hash_key
from tests.support.client import request_bytes
from tests.support.gateway import CHAT, Gateway, ask, chat, running_gateway, settings_for
from tests.support.notation import END, STOP, USE, H, T, answer, chunked
from tests.support.script import Fin, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

OPERATOR = b"authorization: Bearer sg-operator"
SERVER = {"port": 0, "operator_key_hashes": [hash_key("sg-operator")]}
TENANTS = [{"name": "a", "key_hashes": [hash_key("sg-a")], "max_concurrent": 3}]
A = b"x-api-key: sg-a"
WHOLE_STREAM: Script = [Write(H + chunked(T("a"), T("b"), STOP, USE, b"data: [DONE]\n\n") + END), Fin()]

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scraped(gateway: Gateway, *headers: bytes) -> Samples:
    async with await gateway.client() as client:
        await client.request("GET", "/metrics", *(headers or (OPERATOR,)))
        text = (await client.body()).decode()
        assert client.status == 200, text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"slotgate_{name}", tuple(sorted(labels.items()))]


async def test_a_request_is_counted_with_its_times_and_tokens() -> None:
    fu = ScriptedUpstream(scripts={CHAT: WHOLE_STREAM})
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=TENANTS)) as gateway:
        assert (await ask(gateway.url, A)).status == 200
        samples = await scraped(gateway)
    labels = {"model": "m", "tenant": "a"}
    assert value(samples, "request_duration_seconds_count", outcome="ok", **labels) == 1
    for name in ("queue_wait_seconds_count", "time_to_first_token_seconds_count"):
        assert value(samples, name, **labels) == 1
    assert value(samples, "inter_token_seconds_count", model="m") == 1
    kinds = ("prompt", "completion", "cached")
    assert [value(samples, "tokens_total", kind=kind, **labels) for kind in kinds] == [3, 2, 0]
    assert value(samples, "slots", backend="gpu0", state="idle") == fu.llama.total_slots
    assert value(samples, "backend_state", backend="gpu0", state="ready") == 1
    assert samples["process_resident_memory_bytes", ()] > 0


async def test_gauges_show_live_requests() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    fu.llama.total_slots = 2
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=TENANTS)) as gateway:
        first, second, third = [await gateway.client() for _ in range(3)]
        await first.post(CHAT, chat(), A)
        await second.post(CHAT, chat(), A)
        await third.send(request_bytes("POST", CHAT, A, json=chat()))
        await gateway.until(lambda: gateway.scheduler.depth == 1)
        fu.llama.foreign = 1
        first.close()
        await gateway.until(lambda: len(gateway.fleet.backends["gpu0"].pool.quarantine) == 1)
        samples = await scraped(gateway)
        assert value(samples, "leases", tenant="a") == 1
        assert value(samples, "queue_depth", tenant="a") == 1
        assert value(samples, "quarantined_slots", backend="gpu0") == 1
        assert value(samples, "client_disconnects_total", phase="answer") == 1
        assert value(samples, "requests_in_flight") == 2
        third.close()
        second.close()
        fu.llama.foreign = 0


async def test_failures_are_counted_by_their_code() -> None:
    broken: Script = [Write(answer(200, {"choices": []})[:-3]), Fin()]
    scripts = iter([broken, [Write(answer(200, {"choices": []}))]])
    fu = ScriptedUpstream(scripts={CHAT: lambda _: next(scripts)})
    tenants = [{**TENANTS[0], "requests_per_minute": 1}]
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=tenants)) as gateway:
        assert (await ask(gateway.url, A, stream=False)).status == 502
        assert (await ask(gateway.url, A, stream=False)).status == 200, "a failed request costs nothing"
        assert (await ask(gateway.url, A, stream=False)).status == 429
        samples = await scraped(gateway)
    assert value(samples, "upstream_errors_total", code="upstream_truncated") == 1
    assert value(samples, "rejections_total", code="rate_limited") == 1


async def test_no_client_can_create_series() -> None:
    fu = ScriptedUpstream(scripts={CHAT: WHOLE_STREAM})
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=TENANTS)) as gateway:
        await ask(gateway.url, A)
        before = set(await scraped(gateway))
        for number in range(20):
            name = f"name-{number}".encode()
            await ask(gateway.url, A, b"x-request-id: " + name, b"x-slotgate-session: " + name)
            await ask(gateway.url, A, model=f"model-{number}")
            await ask(gateway.url, b"x-api-key: " + name)
        after = set(await scraped(gateway))
    assert len(after - before) < 20, after - before
    assert not any("name-" in str(key) or "model-" in str(key) for key in after)


@pytest.mark.parametrize("headers", [(A,), (b"x-api-key: nonsense",)])
async def test_metrics_need_an_operator_key(headers: tuple[bytes, ...]) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=TENANTS)) as gateway:
        async with await gateway.client() as client:
            await client.request("GET", "/metrics", *headers)
            assert client.status == 401


async def test_without_an_operator_key_there_are_no_metrics() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, tenant=TENANTS)) as gateway:
        async with await gateway.client() as client:
            await client.request("GET", "/metrics", OPERATOR)
            assert client.status == 404


NAMES: dict[str, set[str]] = {
    "slotgate_request_duration_seconds": {"model", "tenant", "outcome"},
    "slotgate_queue_wait_seconds": {"model", "tenant"},
    "slotgate_time_to_first_token_seconds": {"model", "tenant"},
    "slotgate_inter_token_seconds": {"model"},
    "slotgate_tokens_total": {"model", "tenant", "kind"},
    "slotgate_slots": {"backend", "state"},
    "slotgate_queue_depth": {"tenant"},
    "slotgate_leases": {"tenant"},
    "slotgate_quarantined_slots": {"backend"},
    "slotgate_slots_freed_unverified_total": {"backend"},
    "slotgate_client_disconnects_total": {"phase"},
    "slotgate_upstream_errors_total": {"code"},
    "process_resident_memory_bytes": set(),
    "process_cpu_seconds_total": set(),
    "process_open_fds": set(),
}
LABELS = ("model", "tenant", "outcome", "kind", "backend", "phase", "code")


async def test_the_metrics_that_dashboards_use_exist_with_their_labels() -> None:
    """Label values come from the configuration or from fixed lists, never from clients or backends."""
    scripts: list[Script] = [
        WHOLE_STREAM,
        [Write(H + chunked(T("a"))), Fin()],
        [Write(H + chunked(T("a"))), Stall()],
    ]
    refused = [Write(answer(500, b'{"error":{"code":"canary_code","message":"canary","type":"canary"}}'))]
    fu = ScriptedUpstream(scripts={CHAT: lambda _: (*scripts, refused)[len(fu.generations) - 1]})
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=TENANTS)) as gateway:
        for _ in range(2):
            await ask(gateway.url, A, b"x-request-id: canary", user="canary")
        async with await gateway.client() as leaving:
            await leaving.post(CHAT, chat("canary"), A)
        await gateway.until(lambda: len(gateway.fleet.backends["gpu0"].pool.leases) == 0)
        await ask(gateway.url, A, model="canary")
        assert (await ask(gateway.url, A)).status == 500
        samples = await scraped(gateway)
    for name, labels in NAMES.items():
        found = [dict(pairs) for each, pairs in samples if each in (name, f"{name}_count")]
        assert found, name
        assert all(set(pairs) == labels for pairs in found), name
    values = {label: {dict(pairs)[label] for _, pairs in samples if label in dict(pairs)} for label in LABELS}
    assert values == {
        "model": {"m"},
        "tenant": {"a", ""},
        "outcome": {"ok", "error", "client_gone"},
        "kind": {"prompt", "cached", "completion"},
        "backend": {"gpu0"},
        "phase": {"answer"},
        "code": {"upstream_truncated", "other"},
    }
