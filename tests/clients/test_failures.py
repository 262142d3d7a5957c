"""Errors reach the user as the client's own exception, with slotgate's code and the request id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.clients.driven import ClientFailure, ClientRequest, DrivenClient
from tests.clients.every import every_client
from tests.clients.scenes import cut, endless, whole
from tests.support.client import request_bytes
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for
from tests.support.llama import RealLlama
from tests.support.llama_like import LlamaLike
from tests.support.notation import answer, error_body
from tests.support.script import Script, Sleep, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

ID = {"x-request-id": "req-of-this-test"}
TOO_LONG = "word " * 5000


@asynccontextmanager
async def gateway_for(client: DrivenClient, script: Script, **sections: Any) -> AsyncIterator[Gateway]:  # noqa: ANN401
    fu = ScriptedUpstream(scripts={client.path: script})
    async with fu, running_gateway(settings_for(fu.url, **sections)) as gateway:
        yield gateway


def raised(client: DrivenClient, status: int, failure: ClientFailure | None) -> ClientFailure:
    """Check that the exception is the client's own for this status, and has the request id."""
    assert failure is not None
    assert failure.kind == client.errors[status]
    if client.path == "/v1/messages" and status == 503:
        status = 529  # what Anthropic says there
    assert (failure.status, failure.request_id) == (status, ID["x-request-id"])
    return failure


@pytest.mark.slow
@every_client
async def test_a_wrong_key(client: DrivenClient) -> None:
    tenant = {"name": "a", "key_hashes": [hash_key(b"sg-right")]}
    async with gateway_for(client, whole(client.path), tenant=[tenant]) as gateway:
        ask = ClientRequest(gateway, key="sg-wrong", headers=ID)
        assert raised(client, 401, (await client.run(ask)).failure).code == "invalid_api_key"
        assert (await client.run(replace(ask, key="sg-right"))).failure is None


@every_client
async def test_an_unknown_model(client: DrivenClient) -> None:
    async with gateway_for(client, whole(client.path)) as gateway:
        report = await client.run(ClientRequest(gateway, model="gpt-9", headers=ID))
        assert raised(client, 404, report.failure).code == "model_not_found"


@every_client
async def test_a_prompt_that_is_too_long(client: DrivenClient, tiny_llama: RealLlama) -> None:
    async with running_gateway(settings_for(tiny_llama.url)) as gateway:
        report = await client.run(ClientRequest(gateway, prompt=TOO_LONG, headers=ID))
        assert "exceeds the available context size" in raised(client, 400, report.failure).message


@every_client
async def test_a_fault_of_the_backend(client: DrivenClient) -> None:
    fault = answer(500, error_body(500, "Context size has been exceeded.", "server_error"))
    async with gateway_for(client, [Write(fault)]) as gateway:
        report = await client.run(ClientRequest(gateway, headers=ID))
        assert raised(client, 500, report.failure).message.endswith("Context size has been exceeded.")


@asynccontextmanager
async def busy_gateway(limits: dict[str, float]) -> AsyncIterator[Gateway]:
    """Run a gateway whose only slot is busy."""
    fu = ScriptedUpstream(scripts={CHAT: endless(CHAT)}, llama=LlamaLike(slots=1))
    async with fu, running_gateway(settings_for(fu.url, admission=limits)) as gateway:
        async with await gateway.client() as running:
            await running.post(CHAT, chat())
            yield gateway


@pytest.mark.slow
@every_client
async def test_no_slot_in_time(client: DrivenClient) -> None:
    async with busy_gateway({"queue_timeout_s": 0.2}) as gateway:
        report = await client.run(ClientRequest(gateway, headers=ID))
        assert raised(client, 503, report.failure).code == "queue_timeout"


@every_client
async def test_a_full_queue(client: DrivenClient) -> None:
    async with busy_gateway({"max_queue": 1}) as gateway, await gateway.client() as waiting:
        await waiting.send(request_bytes("POST", CHAT, json=chat()))
        await gateway.until(lambda: gateway.scheduler.depth == 1)
        report = await client.run(ClientRequest(gateway, headers=ID))
        assert raised(client, 429, report.failure).code == "queue_full"


@every_client
async def test_a_truncated_stream_is_an_error(client: DrivenClient) -> None:
    """The user keeps the text that came before."""
    async with gateway_for(client, cut(client.path)) as gateway:
        report = await client.run(ClientRequest(gateway, headers=ID))
    assert report.pieces[:2] == [" one", " two"][: len(report.pieces)]
    assert report.failure is not None
    assert (report.failure.kind, report.failure.code) == (client.errors[200], "upstream_truncated")
    assert report.finish in (None, "error")


@every_client
async def test_an_error_after_keepalives_is_an_error(client: DrivenClient) -> None:
    """The status 200 was sent with the first keep-alive."""
    late: Script = [
        Sleep(0.2),
        Write(answer(400, error_body(400, "too much of it", "invalid_request_error"))),
    ]
    async with gateway_for(client, late, streaming={"keepalive_interval_s": 0.05}) as gateway:
        report = await client.run(ClientRequest(gateway, headers=ID))
    assert report.failure is not None
    assert "too much of it" in report.failure.message
    assert report.pieces == []
