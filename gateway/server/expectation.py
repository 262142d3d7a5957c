"""Answers to clients that wait for 100 Continue before they send a body."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["closing_if_early"]


def closing_if_early(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """Wrap `app` so that an answer that comes before the whole body says `connection: close`.

    The client may send the body all the same or leave it out (RFC 9110, 10.1.1), so nobody can tell if the
    next bytes are the body or another request. The connection closes, and the client must know that.
    """

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_early(message: Message) -> None:
            if message["type"] == "http.response.start" and cycle.more_body:
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, send_early)

    return answered
