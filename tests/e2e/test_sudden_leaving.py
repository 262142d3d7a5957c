"""A client leaves in the moment in which its answer begins: it ends as any other request, once."""

from __future__ import annotations

import pytest

from slotgate.gateway.app.application import build_app
from slotgate.gateway.auth.identity import Identities
from tests.e2e.test_endpoints import IN_BOTH_MODES, answering, line_of, slots_of, upstream_of
from tests.support.endpoints import Way
from tests.support.gateway import running_gateway, settings_for
from tests.support.peer import AsgiPeer

pytestmark = pytest.mark.anyio


@IN_BOTH_MODES
async def test_scenario_009_a_client_that_leaves_as_its_answer_begins_is_counted_once(
    way: Way, *, stream: bool
) -> None:
    """`http.response.start` waits when the client leaves, and never reaches it."""
    fu = upstream_of(way, answering(way, stream=stream), slots=1)
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        app = build_app(settings_for(fu.url), gateway.parts, Identities(lambda _: None))
        body, lines = way.body(**({"stream": True} if stream else {}))
        headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        async with AsgiPeer(app, way.path, headers=headers, body=body) as peer:
            peer.hold()
            await peer.until(lambda: peer.blocked)
            assert peer.status is None
        assert peer.status is None
        await gateway.until(lambda: slots_of(gateway).free == 1)
        assert line_of(gateway)["outcome"] in ("ok", "client_gone")
        assert sum(slots_of(gateway).released.values()) == gateway.scheduler.granted == 1
