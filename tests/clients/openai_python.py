"""The official `openai` package: both clients, plain streams and the streaming helpers, three endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from tests.clients.driven import (
    PARAMETERS,
    TOOL,
    ClientFailure,
    ClientReport,
    ClientRequest,
    DrivenClient,
    Run,
    in_a_thread,
)
from tests.support.gateway import CHAT

ERRORS = {
    200: "APIError",
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "InternalServerError",
}
EVENTS = {**ERRORS, 200: "response.failed"}
"""A failed Responses stream ends with an event, and the client raises nothing."""
CHAT_TOOL = {"type": "function", "function": {"name": TOOL, "parameters": PARAMETERS, "strict": True}}
RESPONSES_TOOL = {"type": "function", "name": TOOL, "parameters": PARAMETERS, "strict": True}


def options(ask: ClientRequest) -> dict[str, Any]:
    return {
        "base_url": f"{ask.base}/v1",
        "api_key": ask.key,
        "max_retries": 0,
        "default_headers": ask.headers,
    }


@asynccontextmanager
async def async_client(ask: ClientRequest) -> AsyncIterator[AsyncOpenAI]:
    """Return an HTTP client that ignores the proxy variables of the environment."""
    async with DefaultAsyncHttpxClient(trust_env=False) as http:
        yield AsyncOpenAI(http_client=http, **options(ask))


def failure_of(error: openai.APIError) -> ClientFailure:
    status = error.status_code if isinstance(error, openai.APIStatusError) else None
    request_id = error.request_id if isinstance(error, openai.APIStatusError) else None
    return ClientFailure(type(error).__name__, status, error.code, request_id, error.message)


def chat_params(ask: ClientRequest) -> dict[str, Any]:
    params: dict[str, Any] = {
        "model": ask.model,
        "messages": ask.messages,
        "temperature": 0,
        "stream_options": {"include_usage": True},
    }
    if ask.max_tokens is not None:
        params["max_tokens"] = ask.max_tokens
    return params | ({"tools": [CHAT_TOOL]} if ask.tools else {})


def text_params(ask: ClientRequest) -> dict[str, Any]:
    limit = {} if ask.max_tokens is None else {"max_tokens": ask.max_tokens}
    return {"model": ask.model, "prompt": ask.prompt, "temperature": 0, **limit}


def response_params(ask: ClientRequest) -> dict[str, Any]:
    params: dict[str, Any] = {"model": ask.model, "input": ask.prompt, "temperature": 0}
    if ask.max_tokens is not None:
        params["max_output_tokens"] = ask.max_tokens
    return params | ({"tools": [RESPONSES_TOOL]} if ask.tools else {})


# -- reading chunks and events


def hear_chunk(report: ClientReport, chunk: Any) -> None:  # noqa: ANN401
    report.tokens = chunk.usage.completion_tokens if chunk.usage else report.tokens
    for choice in chunk.choices:
        report.finish = choice.finish_reason or report.finish
        if choice.delta.content:
            report.pieces.append(choice.delta.content)
        for call in choice.delta.tool_calls or ():
            name, arguments = report.call or ("", "")
            report.call = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))


def hear_text(report: ClientReport, chunk: Any) -> None:  # noqa: ANN401
    report.tokens = chunk.usage.completion_tokens if chunk.usage else report.tokens
    for choice in chunk.choices:
        report.finish = choice.finish_reason or report.finish
        if choice.text:
            report.pieces.append(choice.text)


def hear_event(report: ClientReport, event: Any) -> None:  # noqa: ANN401
    if event.type == "response.output_text.delta":
        report.pieces.append(event.delta)
    elif event.type == "response.completed":
        hear_response(report, event.response)
    elif event.type == "response.failed":
        error = event.response.error
        report.failure = ClientFailure(event.type, code=error.code, message=error.message)
    elif event.type == "error":
        report.failure = ClientFailure(event.type, code=event.code, message=event.message)


def hear_response(report: ClientReport, response: Any) -> None:  # noqa: ANN401
    report.finish, report.tokens = response.status, response.usage.output_tokens
    for item in response.output:
        if item.type == "function_call":
            report.call = (item.name, item.arguments)


# -- the clients


def create(
    create_of: Callable[[Any], Any],
    params: Callable[[ClientRequest], Any],
    record_event: Callable[[ClientReport, Any], None],
) -> tuple[Run, Run]:
    """Return runs of `client.….create(stream=True)`, asynchronous and synchronous."""

    async def run(ask: ClientRequest) -> ClientReport:
        report = ClientReport()
        try:
            async with async_client(ask) as client:
                stream = await create_of(client)(stream=True, **params(ask))
                report.request_id = stream.response.headers["x-request-id"]
                async for event in stream:
                    record_event(report, event)
                    if ask.must_leave(report):
                        await stream.close()
                        await ask.left()
                        break
        except openai.APIError as error:
            report.failure = failure_of(error)
        return report

    def body(ask: ClientRequest, report: ClientReport, left: Callable[[], None]) -> None:
        try:
            with DefaultHttpxClient(trust_env=False) as http:
                stream = create_of(OpenAI(http_client=http, **options(ask)))(stream=True, **params(ask))
                report.request_id = stream.response.headers["x-request-id"]
                for event in stream:
                    record_event(report, event)
                    if ask.must_leave(report):
                        stream.close()
                        left()
                        break
        except openai.APIError as error:
            report.failure = failure_of(error)

    return run, in_a_thread(body)


async def chat_helper(ask: ClientRequest) -> ClientReport:
    """Runs of `client.chat.completions.stream`, which accumulates the chunks."""
    report = ClientReport()
    try:
        async with async_client(ask) as client:
            async with client.chat.completions.stream(**chat_params(ask)) as stream:
                async for event in stream:
                    if event.type == "content.delta":
                        report.pieces.append(event.delta)
                    elif event.type == "tool_calls.function.arguments.done":
                        report.call = (event.name, event.arguments)
                    if ask.must_leave(report):
                        break
                snapshot = stream.current_completion_snapshot
            if ask.leave_after is not None:
                await ask.left()
                return report
            [choice] = snapshot.choices
            assert report.text == (choice.message.content or ""), "the sum is the text"
            report.finish = choice.finish_reason
            report.tokens = snapshot.usage.completion_tokens if snapshot.usage else None
    except openai.APIError as error:
        report.failure = failure_of(error)
    return report


async def responses_helper(ask: ClientRequest) -> ClientReport:
    """Runs of `client.responses.stream`, which accumulates the events."""
    report = ClientReport()
    try:
        async with async_client(ask) as client:
            async with client.responses.stream(**response_params(ask)) as stream:
                async for event in stream:
                    hear_event(report, event)
                    if ask.must_leave(report):
                        break
                if ask.leave_after is None and report.failure is None:
                    final = await stream.get_final_response()
                    assert report.text == final.output_text, "the sum is the text"
                    hear_response(report, final)
            if ask.leave_after is not None:
                await ask.left()
    except openai.APIError as error:
        report.failure = failure_of(error)
    return report


_chat = create(lambda client: client.chat.completions.create, chat_params, hear_chunk)
_text = create(lambda client: client.completions.create, text_params, hear_text)
_responses = create(lambda client: client.responses.create, response_params, hear_event)

CLIENTS = (
    DrivenClient("openai chat", CHAT, _chat[0], errors=ERRORS),
    DrivenClient("openai chat, sync", CHAT, _chat[1], errors=ERRORS),
    DrivenClient("openai chat, helper", CHAT, chat_helper, errors=ERRORS),
    DrivenClient("openai completions", "/v1/completions", _text[0], errors=ERRORS),
    DrivenClient("openai completions, sync", "/v1/completions", _text[1], errors=ERRORS),
    DrivenClient("openai responses", "/v1/responses", _responses[0], errors=EVENTS),
    DrivenClient("openai responses, sync", "/v1/responses", _responses[1], errors=EVENTS),
    DrivenClient("openai responses, helper", "/v1/responses", responses_helper, errors=EVENTS),
)
