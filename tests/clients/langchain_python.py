"""LangChain's OpenAI chat model, over chat completions and over Responses."""

from __future__ import annotations

import re
from contextlib import aclosing
from typing import Any

import openai
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient
from pydantic import SecretStr

from tests.clients.driven import ClientFailure, ClientReport, ClientRequest, DrivenClient, Run
from tests.clients.openai_python import CHAT_TOOL, failure_of
from tests.support.gateway import CHAT

ERRORS = {
    200: "APIError",
    400: "OpenAIInvalidRequestError",
    401: "OpenAIAuthenticationError",
    404: "OpenAIModelNotFoundError",
    429: "OpenAIRateLimitError",
    500: "OpenAIAPIError",
    503: "OpenAIAPIError",
}


def model(ask: ClientRequest, http: DefaultAsyncHttpxClient, **more: Any) -> ChatOpenAI:  # noqa: ANN401
    limit: dict[str, Any] = {} if ask.max_tokens is None else {"max_tokens": ask.max_tokens}
    return ChatOpenAI(
        model=ask.model,
        base_url=f"{ask.base}/v1",
        api_key=SecretStr(ask.key),
        max_retries=0,
        temperature=0,
        stream_usage=True,
        default_headers=ask.headers,
        http_async_client=http,
        **limit,
        **more,
    )


def streams(*, responses: bool) -> Run:
    async def run(ask: ClientRequest) -> ClientReport:
        report = ClientReport()
        whole: AIMessageChunk | None = None
        try:
            async with DefaultAsyncHttpxClient(trust_env=False) as http:
                chat = model(ask, http, use_responses_api=responses)
                bound = chat.bind_tools([CHAT_TOOL]) if ask.tools else chat
                chunks: Any = bound.astream(ask.prompt)
                async with aclosing(chunks):
                    async for chunk in chunks:
                        whole = chunk if whole is None else whole + chunk
                        if chunk.text:
                            report.pieces.append(str(chunk.text))
                        if ask.must_leave(report):
                            break
                if ask.leave_after is not None:
                    await ask.left()
        except openai.APIError as error:
            report.failure = failure_of(error)
        except ValueError as error:  # so it reports `response.failed`
            [code] = re.findall(r"code='(\w+)'", str(error))
            report.failure = ClientFailure("ValueError", code=code, message=str(error))
        if whole is not None:
            assert report.text == whole.text, "the sum is the text"
            report.tokens = whole.usage_metadata["output_tokens"] if whole.usage_metadata else None
            said = whole.response_metadata
            report.finish = said.get("status" if responses else "finish_reason")
            for call in whole.tool_call_chunks:
                report.call = (call["name"] or "", call["args"] or "")
        return report

    return run


CLIENTS = (
    DrivenClient("langchain", CHAT, streams(responses=False), errors=ERRORS),
    DrivenClient(
        "langchain, responses", "/v1/responses", streams(responses=True), errors=ERRORS | {200: "ValueError"}
    ),
)
