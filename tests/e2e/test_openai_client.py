"""The official clients, asynchronous and synchronous, get the texts and errors that the gateway sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from tests.support.gateway import CHAT, Gateway, running_gateway, settings_for
from tests.support.notation import DONE, END, STOP, USE, H, T, answer, chunked, error_body
from tests.support.script import Fin, Paced, Script, Sleep, Stall, Write, stream
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

FORMS = ["comment", "chunk", "off"]
either = pytest.mark.parametrize("synchronous", [False, True], ids=["async", "sync"])
form = pytest.mark.parametrize("form", FORMS)
QUICK = {"keepalive_interval_s": 0.05}
NUMBERED = [b"id: %d\nevent: message\nretry: 10\n%b" % pair for pair in enumerate([T("a"), T("b"), T("c")])]
PAUSED: Script = [
    Sleep(0.15),
    Write(H + chunked(NUMBERED[0])),
    Sleep(0.15),
    *[Write(chunked(event)) for event in (*NUMBERED[1:], STOP, USE, DONE)],
    Write(END),
    Fin(),
]
"""An id makes every later blank line an event for clients that follow the standard to the letter."""
ERROR = error_body(400, "request (9 tokens) exceeds", "exceed_context_size_error", n_prompt_tokens=9, n_ctx=4)


@contextmanager
def client_of(url: str) -> Iterator[OpenAI]:
    with DefaultHttpxClient(trust_env=False) as http:
        yield OpenAI(base_url=f"{url}/v1", api_key="sg-any", max_retries=0, http_client=http)


@asynccontextmanager
async def async_client_of(url: str) -> AsyncIterator[AsyncOpenAI]:
    async with DefaultAsyncHttpxClient(trust_env=False) as http:
        yield AsyncOpenAI(base_url=f"{url}/v1", api_key="sg-any", max_retries=0, http_client=http)


def asked(keepalive: str) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream_options": {"include_usage": True},
        "extra_headers": {"x-slotgate-keepalive": keepalive},
    }


def _read(url: str, keepalive: str) -> list[Any]:
    with client_of(url) as client:
        return list(client.chat.completions.create(stream=True, **asked(keepalive)))


async def chunks_of(url: str, keepalive: str, *, synchronous: bool) -> list[Any]:
    if synchronous:
        return await asyncio.to_thread(_read, url, keepalive)
    async with async_client_of(url) as client:
        return [
            chunk async for chunk in await client.chat.completions.create(stream=True, **asked(keepalive))
        ]


@asynccontextmanager
async def gateway_for(script: Script) -> AsyncIterator[Gateway]:
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, running_gateway(settings_for(fu.url, streaming=QUICK)) as gateway:
        yield gateway


@pytest.mark.slow
@form
@either
async def test_scenario_052_every_form_reads_as_the_same_text_and_usage(
    form: str, *, synchronous: bool
) -> None:
    async with gateway_for(PAUSED) as gateway:
        chunks = await chunks_of(gateway.url, form, synchronous=synchronous)
    said = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in said) == "abc"
    assert [choice.finish_reason for choice in said if choice.finish_reason] == ["stop"]
    assert chunks[-1].usage.total_tokens == 5
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    if form == "chunk":
        assert said[0].delta.role == "assistant"
        assert len(said) > 6


@form
@either
async def test_scenario_072_an_error_after_an_early_commit_raises_with_its_fields(
    form: str, *, synchronous: bool
) -> None:
    async with gateway_for([Sleep(0.15), Write(answer(400, ERROR))]) as gateway:
        with pytest.raises(openai.APIError) as caught:
            await chunks_of(gateway.url, form, synchronous=synchronous)
    assert (isinstance(caught.value, openai.BadRequestError)) == (form == "off")
    assert caught.value.type == "exceed_context_size_error"
    assert caught.value.message.endswith("exceeds") or "exceeds" in str(caught.value.body)
    assert isinstance(caught.value.body, dict)
    assert (caught.value.body["n_prompt_tokens"], caught.value.body["n_ctx"]) == (9, 4)


@either
async def test_an_error_mid_stream_raises(*, synchronous: bool) -> None:
    async with gateway_for(stream(T("a"), b"data: " + ERROR + b"\n\n")) as gateway:
        with pytest.raises(openai.APIError, match="exceeds"):
            await chunks_of(gateway.url, "comment", synchronous=synchronous)


@either
@pytest.mark.parametrize("end", [Fin(), Stall()], ids=["cut", "silence"])
async def test_a_stream_that_is_cut_or_falls_silent_raises(end: Fin | Stall, *, synchronous: bool) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), end]})
    limits = {"idle_s": 0.2}
    async with fu, running_gateway(settings_for(fu.url, timeouts=limits)) as gateway:
        with pytest.raises(openai.APIError) as caught:
            await chunks_of(gateway.url, "comment", synchronous=synchronous)
    assert caught.value.code == ("idle_timeout" if isinstance(end, Stall) else "upstream_truncated")


@pytest.mark.parametrize(
    ("status", "raised"),
    [
        (400, openai.BadRequestError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
@either
async def test_a_status_raises_its_own_exception(
    status: int, raised: type[openai.APIStatusError], *, synchronous: bool
) -> None:
    async with gateway_for([Write(answer(status, error_body(status, "no", "some_error")))]) as gateway:
        with pytest.raises(raised) as caught:
            await chunks_of(gateway.url, "off", synchronous=synchronous)
    assert caught.value.request_id
    assert caught.value.status_code == status


async def test_a_client_that_leaves_its_stream_frees_the_slot() -> None:
    """`break` out of the loop and close, as an application's stop button does it."""
    async with gateway_for([Write(H), Paced(rate=50, frame=lambda _: T("a"))]) as gateway:
        async with async_client_of(gateway.url) as client:
            answering = await client.chat.completions.create(stream=True, **asked("comment"))
            async for chunk in answering:
                assert chunk.choices[0].delta.content == "a"
                break
            await answering.close()
            await gateway.until(lambda: gateway.idle, within=0.5)
