"""Health and readiness are answered from what is known. No backend is asked for them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from slotgate.gateway.backends.state import BackendState
from tests.support.answer import fetch
from tests.support.gateway import running_gateway, settings_for
from tests.support.scripted import ScriptedUpstream, refusing_url

pytestmark = pytest.mark.anyio

PATHS = {"/health": 200, "/v1/health": 200, "/ready": 503, "/v1/models": 200, "/metrics": 404}


async def test_scenario_104_health_is_answered_at_once_while_all_backends_are_dead() -> None:
    """A backend refuses connections, and another accepts them and never answers."""
    mute = ScriptedUpstream()
    mute.llama.hanging |= {"/health", "/props", "/slots", "/v1/models"}
    async with mute:
        with refusing_url() as refusing:
            async with running_gateway(settings_for(refusing, mute.url), ready=False) as gateway:
                backend = gateway.fleet.backends["gpu0"]
                await gateway.until(lambda: backend.state is BackendState.UNREACHABLE)
                await mute.until(lambda: mute.requests)
                asked = Counter(request.path for request in mute.requests)
                async with asyncio.timeout(0.5):
                    for path, status in PATHS.items():
                        assert (await fetch(gateway.url, "GET", path)).status == status, path
                    said = (await fetch(gateway.url, "GET", "/ready")).json
                assert Counter(request.path for request in mute.requests) == asked
    assert said["status"] == "not ready"
    reasons = {entry["name"]: entry["reason"] for entry in said["backends"]}
    assert all(reasons.values()), reasons
