"""A gateway that is its own backend, directly or through another one, refuses the request that comes back."""

from __future__ import annotations

import pytest

from tests.support.gateway import CHAT, ask, running_gateway, settings_for
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

either = pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])


@either
async def test_request_that_comes_back_is_refused_before_its_body_is_read(*, streaming: bool) -> None:
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        assert (await ask(gateway.url, stream=streaming)).status == 200
        via = dict(fu.generations[0].head.headers)[b"x-slotgate-via"]
        async with await gateway.client() as client:
            start = [b"POST %s HTTP/1.1" % CHAT.encode(), b"host: localhost"]
            head = [b"content-type: application/json", b"content-length: 1000000", b"x-slotgate-via: " + via]
            await client.send(b"\r\n".join([*start, *head, b"", b""]))
            await client.head(2.0)
            assert client.status == 508
        assert len(fu.generations) == 1


async def test_gateway_that_is_its_own_backend_answers_each_request_once() -> None:
    """The address of the backend changes to the gateway's own while it runs, as a host name can do."""
    fu = ScriptedUpstream()
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        gateway.fleet.backends["gpu0"].move_to(gateway.url)
        got = await ask(gateway.url, stream=False)
        assert (got.status, got.error["code"]) == (508, "loop_detected")
        await gateway.until(lambda: gateway.idle)
        assert not fu.generations


async def test_marks_of_other_gateways_are_passed_on_and_counted() -> None:
    fu = ScriptedUpstream()
    other = b"0123456789abcdef"
    async with fu, running_gateway(settings_for(fu.url)) as gateway:
        assert (await ask(gateway.url, b"x-slotgate-via: " + other)).status == 200
        via = dict(fu.generations[0].head.headers)[b"x-slotgate-via"]
        assert via.startswith(other + b", ")
        got = await ask(gateway.url, b"x-slotgate-via: " + b", ".join([other] * 8))
        assert (got.status, got.error["code"]) == (508, "loop_detected")
        assert (await ask(gateway.url, b"x-slotgate-via: nonsense")).status == 200
