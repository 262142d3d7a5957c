"""Reload while requests run: all of the new configuration is applied, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from slotgate.gateway.app.composition import Composition
from slotgate.gateway.app.reload import LiveGateway
from slotgate.gateway.auth.identity import identities_of
from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.settings import Settings, SettingsError, parse
from tests.support.client import request_bytes
from tests.support.gateway import CHAT, Gateway, ask, chat, running_gateway, settings_for, text_of
from tests.support.notation import END, STOP, H, T, answer, chunked, error_body
from tests.support.script import Fin, Gate, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

OPERATOR = b"authorization: Bearer sg-operator"
SERVER = {"port": 0, "operator_key_hashes": [hash_key("sg-operator")]}
A, B = b"x-api-key: sg-a", b"x-api-key: sg-b"
LOADING = answer(503, error_body(503, "Loading model", "unavailable_error"))
WHOLE: Script = [Write(answer(200, {"choices": []}))]


def tenants(*names: str, **more: object) -> list[dict[str, Any]]:
    return [{"name": name, "key_hashes": [hash_key(f"sg-{name}")], **more} for name in names]


class Configuration:
    """The content of the configuration file. Tests change it."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Settings | SettingsError = settings

    def load(self) -> Settings:
        if isinstance(self.settings, SettingsError):
            raise self.settings
        return self.settings


async def reloaded(gateway: Gateway) -> tuple[int, dict[str, Any]]:
    async with await gateway.client() as client:
        await client.request("POST", "/admin/reload", OPERATOR)
        return client.status, await client.json()


async def test_new_keys_and_limits_take_effect() -> None:
    fu = ScriptedUpstream(scripts={CHAT: WHOLE})
    async with fu:
        before = settings_for(fu.url, server=SERVER, tenant=tenants("a"))
        file = Configuration(before)
        async with running_gateway(before, load=file.load) as gateway:
            assert [(await ask(gateway.url, key, stream=False)).status for key in (A, B)] == [200, 401]
            file.settings = settings_for(fu.url, server=SERVER, tenant=tenants("b", requests_per_minute=1))
            assert await reloaded(gateway) == (
                200,
                {"reloaded": True, "needs_restart": [], "next_load": [], "revoked": 0},
            )
            statuses = [(await ask(gateway.url, key, stream=False)).status for key in (A, B, B)]
            assert statuses == [401, 200, 429]


async def test_scenario_109_a_file_with_faults_changes_nothing_and_the_answer_names_the_faults() -> None:
    fu = ScriptedUpstream(scripts={CHAT: WHOLE})
    async with fu:
        before = settings_for(fu.url, server=SERVER, tenant=tenants("a"))
        file = Configuration(before)
        async with running_gateway(before, load=file.load) as gateway:
            with pytest.raises(SettingsError) as faults:
                settings_for(fu.url, server=SERVER, tenant=tenants("b", weight=-1))
            file.settings = faults.value
            status, said = await reloaded(gateway)
            assert (status, said["error"]["code"]) == (400, "invalid_configuration")
            assert "weight" in said["error"]["message"]
            assert [(await ask(gateway.url, key, stream=False)).status for key in (A, B)] == [200, 401]


async def test_the_answer_names_settings_that_need_a_restart() -> None:
    fu = ScriptedUpstream()
    async with fu:
        before = settings_for(fu.url, server=SERVER)
        file = Configuration(before)
        async with running_gateway(before, load=file.load) as gateway:
            file.settings = settings_for(fu.url, server={**SERVER, "keep_alive_s": 5})
            for _ in range(2):  # a second reload does not apply it either
                assert (await reloaded(gateway))[1]["needs_restart"] == ["server.keep_alive_s"]


async def test_scenario_109_a_revoked_key_ends_waiting_requests_and_not_running_ones() -> None:
    gate = Gate()
    fu = ScriptedUpstream(
        scripts={
            CHAT: [Write(H + chunked(T("a"))), gate, Write(chunked(STOP, b"data: [DONE]\n\n") + END), Fin()]
        }
    )
    fu.llama.total_slots = 1
    async with fu:
        before = settings_for(fu.url, server=SERVER, tenant=tenants("a", "b"))
        file = Configuration(before)
        async with running_gateway(before, load=file.load) as gateway:
            running, waiting = await gateway.client(), await gateway.client()
            await running.post(CHAT, chat(), A)
            await waiting.send(request_bytes("POST", CHAT, A, json=chat(stream=False)))
            await gateway.until(lambda: gateway.scheduler.depth == 1)
            file.settings = settings_for(fu.url, server=SERVER, tenant=tenants("b"))
            assert (await reloaded(gateway))[1]["revoked"] == 1
            await waiting.head()
            assert waiting.status == 401
            gate.event.set()
            frames = [frame async for frame in running.frames()]
            assert frames[-1].data == b"data: [DONE]\n\n"
            running.close()
            waiting.close()
            assert len(fu.generations) == 1


async def test_scenario_109_after_a_move_waiting_requests_use_the_new_url_and_running_ones_finish() -> None:
    gate = Gate()
    ending: Script = [gate, Write(chunked(STOP, b"data: [DONE]\n\n") + END), Fin()]
    old = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("old"))), *ending]})
    new = ScriptedUpstream(
        scripts={CHAT: [Write(H + chunked(T("new"), STOP, b"data: [DONE]\n\n") + END), Fin()]}
    )
    old.llama.total_slots = 1
    async with old, new:
        before = settings_for(old.url, server=SERVER)
        file = Configuration(before)
        async with running_gateway(before, load=file.load) as gateway:
            running, waiting = await gateway.client(), await gateway.client()
            await running.post(CHAT, chat(), OPERATOR)
            await waiting.send(request_bytes("POST", CHAT, json=chat()))
            await gateway.until(lambda: gateway.scheduler.depth == 1)
            file.settings = settings_for(new.url, server=SERVER)
            assert (await reloaded(gateway))[0] == 200
            await waiting.head()
            got = [frame.data async for frame in waiting.frames()]
            assert b"new" in got[0]
            gate.event.set()
            assert [frame.data async for frame in running.frames()][-1] == b"data: [DONE]\n\n"
            running.close()
            waiting.close()
            await gateway.until(lambda: not gateway.fleet._retired)
            await old.at_most_open(0)


async def test_a_process_that_was_removed_from_the_file_keeps_serving() -> None:
    local = {"name": "local", "command": ["llama-server"], "models": ["m"]}
    written = parse({"backend": [local], "server": SERVER, "usage": {"store": "none"}}, {})
    running = settings_for("http://127.0.0.1:9", server=SERVER)
    [entry] = running.backends
    running = running.model_copy(update={"backends": (entry.model_copy(update={"name": "local"}),)})
    parts = Composition(running, {})
    try:
        file = Configuration(settings_for("http://127.0.0.1:9", server=SERVER))
        app = LiveGateway(running, parts, identities_of, written=written, load=file.load)
        for _ in range(2):
            assert (await app.reload()).needs_restart == ("backend.local",)
            assert list(parts.runtime.fleet.backends) == ["local", "gpu0"]
    finally:
        await parts.stop()


async def test_a_request_that_fails_on_a_moved_backend_is_retried_at_the_new_url() -> None:
    gate = Gate()
    old = ScriptedUpstream(scripts={CHAT: [gate, Write(LOADING), Fin()]})
    new = ScriptedUpstream(
        scripts={CHAT: [Write(H + chunked(T("new"), STOP, b"data: [DONE]\n\n") + END), Fin()]}
    )
    async with old, new:
        before = settings_for(old.url, server=SERVER)
        file = Configuration(before)
        async with running_gateway(before, load=file.load) as gateway:
            async with await gateway.client() as client:
                await client.send(request_bytes("POST", CHAT, json=chat()))
                await old.generation()
                file.settings = settings_for(new.url, server=SERVER)
                await reloaded(gateway)
                gate.event.set()
                await client.head()
                assert (client.status, text_of([frame async for frame in client.frames()])) == (200, "new")


async def test_a_backend_with_the_same_url_keeps_its_leases() -> None:
    gate = Gate()
    ending: Script = [gate, Write(chunked(STOP, b"data: [DONE]\n\n") + END), Fin()]
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), *ending]})
    fu.llama.total_slots = 1
    async with fu:
        before = settings_for(fu.url, server=SERVER)
        file = Configuration(before)
        async with running_gateway(before, load=file.load) as gateway:
            running, waiting = await gateway.client(), await gateway.client()
            await running.post(CHAT, chat())
            other = settings_for(fu.url, server=SERVER, admission={"quarantine_max_s": 9})
            [entry] = other.backends
            changed = entry.model_copy(update={"models": ("m", "other"), "health_interval_s": 0.1})
            file.settings = other.model_copy(update={"backends": (changed,)})
            assert (await reloaded(gateway))[0] == 200
            await waiting.send(request_bytes("POST", CHAT, json=chat(model="other")))
            await gateway.until(lambda: gateway.scheduler.depth == 1)
            seen = len(fu.requests)
            await fu.until(lambda: [one.path for one in fu.requests[seen:]].count("/props") > 2)
            assert (gateway.scheduler.depth, len(fu.generations)) == (1, 1)
            gate.event.set()
            await waiting.head()
            for client in (running, waiting):
                assert [frame.data async for frame in client.frames()][-1] == b"data: [DONE]\n\n"
                client.close()


async def test_a_backend_can_get_more_slots() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    async with fu:
        before = settings_for(fu.url, server=SERVER)
        [entry] = before.backends
        file = Configuration(before.model_copy(update={"backends": (entry.model_copy(update={"slots": 1}),)}))
        assert isinstance(file.settings, Settings)
        async with running_gateway(file.settings, load=file.load) as gateway:
            clients = [await gateway.client() for _ in range(2)]
            for client in clients:
                await client.send(request_bytes("POST", CHAT, json=chat()))
            await gateway.until(lambda: gateway.scheduler.depth == 1)
            file.settings = before.model_copy(update={"backends": (entry.model_copy(update={"slots": 2}),)})
            await reloaded(gateway)
            await fu.until(lambda: len(fu.generations) == 2)
            for client in clients:
                client.close()


async def test_requests_that_wait_for_a_removed_model_fail() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    fu.llama.total_slots = 1
    async with fu:
        before = settings_for(fu.url, server=SERVER)
        file = Configuration(before)
        async with running_gateway(before, load=file.load) as gateway:
            running, waiting = await gateway.client(), await gateway.client()
            await running.post(CHAT, chat())
            await waiting.send(request_bytes("POST", CHAT, json=chat(stream=False)))
            await gateway.until(lambda: gateway.scheduler.depth == 1)
            other = settings_for(fu.url, server=SERVER)
            [backend] = other.backends
            file.settings = other.model_copy(
                update={"backends": (backend.model_copy(update={"models": ("other",)}),)}
            )
            await reloaded(gateway)
            await waiting.head()
            assert waiting.status == 503
            running.close()
            waiting.close()


async def test_without_a_configuration_file_reload_is_409() -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        status, said = await reloaded(gateway)
        assert (status, said["error"]["code"]) == (409, "nothing_to_reload")
