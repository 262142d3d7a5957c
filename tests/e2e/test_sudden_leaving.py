"""A client leaves in the moment in which its answer begins: it ends as any other request, once."""

from __future__ import annotations

import pytest

from slotgate.gateway.app.application import build_app
from slotgate.gateway.auth.identity import Identities
from tests.e2e.test_endpoints import IN_BOTH_MODES, answering, slots_of, upstream_of
from tests.support.endpoints import Way
from tests.support.gateway import running_gateway, settings_for
from tests.support.peer import AsgiPeer

pytestmark = pytest.mark.anyio


@IN_BOTH_MODES
async def test_scenario_009_a_client_that_leaves_as_its_answer_begins_is_counted_once(
    way: Way, *, stream: bool
) -> None:
    """It leaves while the server has not taken the head yet, and again before the first byte of the body."""
    fu = upstream_of(way, answering(way, stream=stream), slots=1)
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        app = build_app(settings_for(fu.url), gateway.parts, Identities(lambda _: None))
        body, lines = way.body(**({"stream": True} if stream else {}))
        headers = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        for times, before_the_body in ((1, False), (2, True)):
            async with AsgiPeer(app, way.path, headers=headers, body=body) as peer:
                peer.hold(bool if before_the_body else lambda _: True)
                await peer.until(lambda: peer.blocked)
                assert (peer.status, peer.sent) == ((200, 1) if before_the_body else (None, 0))
            await gateway.until(lambda: slots_of(gateway).free == 1)
            outcomes = [line["outcome"] for line in gateway.log.of("request")]
            assert len(outcomes) == times
            assert outcomes[-1] in ("ok", "client_gone")
            assert sum(slots_of(gateway).released.values()) == gateway.scheduler.granted == times
