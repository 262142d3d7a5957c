"""A backend falls silent: every endpoint ends the request in time, with the same status or a framed error."""

from __future__ import annotations

import pytest

from tests.e2e.test_endings import WAYS
from tests.e2e.test_endpoints import error_of, line_of, upstream_of
from tests.support.endpoints import Way
from tests.support.gateway import running_gateway, settings_for
from tests.support.notation import H
from tests.support.script import Stall, Write

pytestmark = pytest.mark.anyio

LIMIT_S = 0.05


@pytest.mark.parametrize(("way", "stream"), WAYS, ids=[f"{way} {stream}" for way, stream in WAYS])
async def test_scenario_018_a_request_that_the_backend_never_begins_ends_in_time(
    way: Way, *, stream: bool
) -> None:
    """The backend has taken the request, and shows all its slots as idle."""
    fu = upstream_of(way, [Stall()])
    async with fu, running_gateway(settings_for(fu.url, timeouts={"first_byte_s": LIMIT_S})) as gateway:
        got = await way.ask(gateway.url, stream=stream)
        assert (got.status, error_of(way, got)["type"]) == (504, "timeout_error")
        assert got.header(b"x-slotgate-reason") == b"first_byte_timeout"
        assert line_of(gateway)["code"] == "first_byte_timeout"
        await fu.until(lambda: not fu.generations[0].connection.is_open)


@pytest.mark.parametrize("way", [way for way, stream in WAYS if stream], ids=repr)
async def test_scenario_065_a_stream_that_falls_silent_ends_with_an_error_that_says_so(way: Way) -> None:
    fu = upstream_of(way, [Write(H + way.head()), Stall()])
    async with fu, running_gateway(settings_for(fu.url, timeouts={"idle_s": LIMIT_S})) as gateway:
        frames = await way.frames(gateway.url)
        assert line_of(gateway)["code"] == "idle_timeout"
        await fu.until(lambda: not fu.generations[0].connection.is_open)
    assert way.text(frames) == "a"
    assert way.error(frames)["message"] == "the backend stopped sending"
