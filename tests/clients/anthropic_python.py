"""The official `anthropic` package: both clients, `create(stream=True)` and the helper `messages.stream`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic, DefaultAsyncHttpxClient, DefaultHttpxClient

from tests.clients.driven import (
    PARAMETERS,
    TOOL,
    ClientFailure,
    ClientReport,
    ClientRequest,
    DrivenClient,
    in_a_thread,
)

MESSAGES = "/v1/messages"
ERRORS = {
    200: "APIStatusError",
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "OverloadedError",
}


def options(ask: ClientRequest) -> dict[str, Any]:
    return {"base_url": ask.base, "api_key": ask.key, "max_retries": 0, "default_headers": ask.headers}


@asynccontextmanager
async def async_client(ask: ClientRequest) -> AsyncIterator[AsyncAnthropic]:
    async with DefaultAsyncHttpxClient(trust_env=False) as http:
        yield AsyncAnthropic(http_client=http, **options(ask))


def params(ask: ClientRequest) -> dict[str, Any]:
    limit = {"max_tokens": 1000 if ask.max_tokens is None else ask.max_tokens}
    tools = {"tools": [{"name": TOOL, "input_schema": PARAMETERS}]} if ask.tools else {}
    return {"model": ask.model, "messages": ask.messages, "extra_body": {"temperature": 0}, **limit, **tools}


def failure_of(error: anthropic.APIError) -> ClientFailure:
    """Return the failure. Members that Anthropic does not have are beside `type` and `message`."""
    if not isinstance(error, anthropic.APIStatusError):
        return ClientFailure(type(error).__name__, message=error.message)
    said = error.body["error"] if isinstance(error.body, dict) else {}
    code = said.get("code")
    return ClientFailure(
        type(error).__name__, error.status_code, code, error.request_id, said.get("message", "")
    )


def record_event(report: ClientReport, event: Any) -> None:  # noqa: ANN401
    if event.type == "content_block_start" and event.content_block.type == "tool_use":
        report.call = (event.content_block.name, "")
    elif event.type == "content_block_delta" and event.delta.type == "text_delta":
        report.pieces.append(event.delta.text)
    elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
        assert report.call is not None, "arguments of no call"
        report.call = (report.call[0], report.call[1] + event.delta.partial_json)
    elif event.type == "message_delta":
        report.finish, report.tokens = event.delta.stop_reason, event.usage.output_tokens


async def create(ask: ClientRequest) -> ClientReport:
    report = ClientReport()
    try:
        async with async_client(ask) as client:
            stream: Any = await client.messages.create(stream=True, **params(ask))
            report.request_id = stream.response.headers["request-id"]
            async for event in stream:
                record_event(report, event)
                if ask.must_leave(report):
                    await stream.close()
                    await ask.left()
                    break
    except anthropic.APIError as error:
        report.failure = failure_of(error)
    return report


async def helper(ask: ClientRequest) -> ClientReport:
    report = ClientReport()
    try:
        async with async_client(ask) as client:
            async with client.messages.stream(**params(ask)) as stream:
                report.request_id = stream.request_id
                async for event in stream:
                    record_event(report, event)
                    if ask.must_leave(report):
                        break
                if ask.leave_after is None:
                    final = await stream.get_final_message()
                    blocks = [block.text for block in final.content if block.type == "text"]
                    assert report.text == "".join(blocks), "the sum is the text"
            if ask.leave_after is not None:
                await ask.left()
    except anthropic.APIError as error:
        report.failure = failure_of(error)
    return report


def create_sync(ask: ClientRequest, report: ClientReport, left: Callable[[], None]) -> None:
    try:
        with DefaultHttpxClient(trust_env=False) as http:
            client = Anthropic(http_client=http, **options(ask))
            stream: Any = client.messages.create(stream=True, **params(ask))
            report.request_id = stream.response.headers["request-id"]
            for event in stream:
                record_event(report, event)
                if ask.must_leave(report):
                    stream.close()
                    left()
                    break
    except anthropic.APIError as error:
        report.failure = failure_of(error)


CLIENTS = (
    DrivenClient("anthropic", MESSAGES, create, errors=ERRORS),
    DrivenClient("anthropic, sync", MESSAGES, in_a_thread(create_sync), errors=ERRORS),
    DrivenClient("anthropic, helper", MESSAGES, helper, errors=ERRORS),
)
