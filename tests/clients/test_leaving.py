"""Stopping a stream in a client frees the slot, while the client object stays open."""

from __future__ import annotations

import pytest

from tests.clients.driven import ClientRequest, DrivenClient
from tests.clients.every import every_client
from tests.clients.scenes import endless
from tests.support.gateway import running_gateway, settings_for
from tests.support.llama import RealLlama
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio


@every_client
async def test_stopping_a_stream_frees_its_slot(client: DrivenClient) -> None:
    fu = ScriptedUpstream(scripts={client.path: endless(client.path)})
    freed: list[bool] = []
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        pool = gateway.fleet.backends["gpu0"].pool

        async def on_left() -> None:
            await gateway.until(lambda: gateway.idle and pool.free == 4)
            freed.append(True)

        report = await client.run(ClientRequest(gateway, leave_after=3, on_left=on_left))
        assert report.failure is None
        assert len(report.pieces) >= 3
        assert freed == [True]
        assert len(fu.generations) == 1, "no client tried again"


@every_client
async def test_scenario_014_stopping_a_stream_of_a_real_model_frees_its_slot(
    client: DrivenClient, tiny_llama: RealLlama
) -> None:
    """The model would go on to the end of its context, and the next request gets its slot."""
    async with running_gateway(settings_for(tiny_llama.url)) as gateway:
        pool = gateway.fleet.backends["gpu0"].pool

        async def on_left() -> None:
            await gateway.until(lambda: gateway.idle and pool.free == tiny_llama.slots)

        ask = ClientRequest(gateway, max_tokens=3000, leave_after=2, on_left=on_left)
        report = await client.run(ask)
        assert report.failure is None
        assert report.finish is None, "it was stopped before the end"
