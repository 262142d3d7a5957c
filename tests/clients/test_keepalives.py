"""Keep-alives are on the wire, and users do not see them."""

from __future__ import annotations

import asyncio

import pytest

from tests.clients import node_js
from tests.clients.driven import ClientReport, ClientRequest, DrivenClient
from tests.clients.every import every_client
from tests.clients.scenes import WORDS, whole
from tests.clients.tap import PINGS, look_of_keepalives, tapped
from tests.support.gateway import running_gateway, settings_for
from tests.support.script import Gate, Sleep
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

COUNT = 4
LIMIT_MS, PROMPT_S = 300, 1.9
"""Node's limit of silence, of which it takes note once a second, and a backend's time for a prompt."""


@pytest.mark.parametrize("form", ["comment", "chunk"])
@every_client
async def test_scenario_081_keepalives_reach_the_client_library_and_not_its_user(
    client: DrivenClient, form: str
) -> None:
    """The backend is silent until some keep-alives have passed."""
    heard = asyncio.Event()
    fu = ScriptedUpstream(scripts={client.path: whole(client.path, Gate(heard))})
    streaming = {"keepalive": form, "keepalive_interval_s": 0.05}
    async with (
        fu,
        running_gateway(settings_for(fu.url, streaming=streaming)) as gateway,
        tapped(gateway.url) as tap,
    ):

        def on_seen(seen: bytearray) -> None:
            if seen.count(look_of_keepalives(client.path, form)) >= COUNT:
                heard.set()

        tap.on_seen = on_seen
        report = await client.run(ClientRequest(gateway, url=tap.url, max_tokens=None))
    assert report.failure is None
    assert report.pieces == WORDS
    assert report.tokens == len(WORDS)
    assert report.finish in ("stop", "end_turn", "completed")


@pytest.mark.slow
@every_client
async def test_a_client_can_turn_keepalives_off(client: DrivenClient) -> None:
    """The backend is silent while several keep-alives would be due."""
    fu = ScriptedUpstream(scripts={client.path: whole(client.path, Sleep(0.3))})
    streaming = {"keepalive_interval_s": 0.05}
    async with fu, running_gateway(settings_for(fu.url, streaming=streaming)) as gateway:
        async with tapped(gateway.url) as tap:
            refusing = {"x-slotgate-keepalive": "off"}
            report = await client.run(ClientRequest(gateway, url=tap.url, max_tokens=None, headers=refusing))
    assert report.pieces == WORDS
    assert not any(sign in tap.seen for sign in PINGS)


@pytest.mark.slow
@pytest.mark.usefixtures("node_clients")
async def test_scenario_060_keepalives_keep_node_from_giving_up_a_silent_request() -> None:
    """Without keep-alives the same request is given up."""
    paths = {client.path for client in node_js.CLIENTS}
    fu = ScriptedUpstream(scripts={path: whole(path, Sleep(PROMPT_S)) for path in paths})
    streaming = {"keepalive_interval_s": 0.2}
    async with fu, running_gateway(settings_for(fu.url, streaming=streaming)) as gateway:

        async def run(client: DrivenClient, keepalive: str) -> ClientReport:
            headers = {"x-slotgate-keepalive": keepalive}
            ask = ClientRequest(gateway, max_tokens=None, headers=headers, idle_ms=LIMIT_MS)
            return await client.run(ask)

        *kept, given_up = await asyncio.gather(
            *(run(client, "comment") for client in node_js.CLIENTS), run(node_js.CLIENTS[0], "off")
        )
    assert [(report.failure, report.pieces) for report in kept] == [(None, WORDS)] * len(kept)
    assert given_up.pieces == []
    assert given_up.failure is not None
