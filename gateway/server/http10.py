"""Responses to HTTP/1.0 clients."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["close_delimited"]


def close_delimited(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """Wrap `app` so that a body of unknown length ends with the connection.

    HTTP/1.0 has neither chunks nor 100 Continue. uvicorn sends chunks unless it knows the length of the body,
    so it is told the length of each piece.
    """
    cycle.waiting_for_100_continue = False

    async def plain(scope: Scope, receive: Receive, send: Send) -> None:
        stated = False

        async def send_plain(message: Message) -> None:
            nonlocal stated
            if message["type"] == "http.response.start":
                stated = any(name.lower() == b"content-length" for name, _ in message["headers"])
                cycle.chunked_encoding = None if stated else False
            elif not stated:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return plain
