"""`GET /admin/status` shows slots, queue and tenants while requests run."""

from __future__ import annotations

from typing import Any

import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.support.client import request_bytes
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for
from tests.support.notation import H, T, chunked
from tests.support.script import Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

OPERATOR = b"authorization: Bearer sg-operator"
SERVER = {"port": 0, "operator_key_hashes": [hash_key("sg-operator")]}
TENANTS = [{"name": "a", "key_hashes": [hash_key("sg-a")]}]
KEY = b"authorization: Bearer sg-a"


async def status(gateway: Gateway, *headers: bytes) -> tuple[int, dict[str, Any]]:
    async with await gateway.client() as client:
        await client.request("GET", "/admin/status", *headers)
        return client.status, await client.json()


async def test_the_status_shows_leased_and_quarantined_slots_and_the_queue() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    fu.llama.total_slots = 2
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=TENANTS)) as gateway:
        first, second, third = [await gateway.client() for _ in range(3)]
        await first.post(CHAT, chat(), KEY)
        await second.post(CHAT, chat(), KEY)
        await third.send(request_bytes("POST", CHAT, KEY, json=chat()))
        await gateway.until(lambda: gateway.scheduler.depth == 1)
        fu.llama.foreign = 1  # llama-server still shows the slot of the disconnected client as busy
        first.close()
        pool = gateway.fleet.backends["gpu0"].pool
        await gateway.until(lambda: len(pool.quarantine) == 1)
        code, shown = await status(gateway, OPERATOR)
        assert code == 200
        assert shown["models"] == [{"name": "m", "aliases": [], "backends": ["gpu0"]}]
        [backend] = shown["backends"]
        slots = backend["slots"]
        assert slots.pop("quarantined_oldest_s") >= 0
        assert slots == {"total": 2, "idle": 0, "leased": 1, "quarantined": 1, "foreign": 0}
        assert backend["state"] == "ready"
        assert shown["queue"]["by_tenant"] == {"a": 1}
        assert shown["tenants"] == [{"name": "a", "leases": 1, "queued": 1}]
        third.close()
        second.close()
        fu.llama.foreign = 0


@pytest.mark.parametrize("headers", [(), (KEY,), (b"x-api-key: sg-wrong",)])
async def test_the_status_needs_an_operator_key(headers: tuple[bytes, ...]) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=TENANTS)) as gateway:
        code, answer = await status(gateway, *headers)
    assert code == 401
    assert answer["error"]["code"] == "invalid_api_key"


async def test_without_an_operator_key_there_is_no_status() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        code, _ = await status(gateway, OPERATOR)
    assert code == 404
