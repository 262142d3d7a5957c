"""A gateway as tutorials write it. It is here to be measured, not to be copied.

It has a middleware class that wraps the response in tasks and queues, a generator per response, lines instead
of bytes, JSON that is parsed and dumped for every token, and a check for the client's disconnect between any
two tokens.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

__all__ = ["app"]

_DATA = "data: "
client = httpx.AsyncClient(
    base_url=os.environ.get("BENCH_UPSTREAM", ""),
    timeout=httpx.Timeout(5, read=3600),
    limits=httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=4),
    trust_env=False,
)


class Logging(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


async def chat(request: Request) -> Response:
    body = await request.json()

    async def events() -> AsyncIterator[str]:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith(_DATA) or await request.is_disconnected():
                    continue
                payload = line.removeprefix(_DATA)
                if payload != "[DONE]":
                    payload = json.dumps(json.loads(payload))
                yield f"{_DATA}{payload}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


app = Starlette(
    routes=[Route("/v1/chat/completions", chat, methods=["POST"])], middleware=[Middleware(Logging)]
)
