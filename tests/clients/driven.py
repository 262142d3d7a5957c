"""The interface by which tests drive all clients: a request, and a report of what the user got.

Every client of every endpoint has one function, `Run`, so that one test covers all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.gateway import Gateway

TOOL = "weather"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class ClientFailure:
    """The client's exception, or the last event of a failed Responses stream, which raises nothing."""

    kind: str
    """The name of the exception's class."""
    status: int | None = None
    code: str | None = None
    request_id: str | None = None
    message: str = ""


@dataclass(slots=True)
class ClientReport:
    pieces: list[str] = field(default_factory=list)
    """The pieces of text that a user sees, in order."""
    finish: str | None = None
    tokens: int | None = None
    """Tokens of output, as the client counts them."""
    call: tuple[str, str] | None = None
    """The name and the arguments of the tool call, as the client assembled them."""
    request_id: str | None = None
    """The request id, if the client shows it for a success."""
    failure: ClientFailure | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A streaming request. The client must not retry it."""

    gateway: Gateway
    url: str = ""
    """The base URL, if it is not the gateway's own."""
    prompt: str = "hi"
    max_tokens: int | None = 8
    model: str = "m"
    key: str = "sg-any"
    tools: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    leave_after: int | None = None
    """The number of pieces after which the client stops the stream as its documentation says."""
    on_left: Callable[[], Awaitable[None]] | None = None
    """Called after the stop, while the client object is still open."""
    idle_ms: int | None = None
    """The time without a byte after which Node gives up a request. Clients outside Node ignore it."""

    @property
    def base(self) -> str:
        return self.url or self.gateway.url

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]

    def must_leave(self, report: ClientReport) -> bool:
        return self.leave_after is not None and len(report.pieces) >= self.leave_after

    async def left(self) -> None:
        if self.on_left is not None:
            await self.on_left()


Run = Callable[[ClientRequest], Awaitable[ClientReport]]


@dataclass(frozen=True, slots=True)
class DrivenClient:
    name: str
    path: str
    """The path of the endpoint that the client uses."""
    run: Run
    needs_node: bool = False
    errors: dict[int, str] = field(default_factory=dict)
    """Status -> name of the exception. 200 has the exception of a stream that fails."""


def in_a_thread(body: Callable[[ClientRequest, ClientReport, Callable[[], None]], None]) -> Run:
    """Return a run of a synchronous client in a thread. Callbacks run in the event loop of the test."""

    async def run(ask: ClientRequest) -> ClientReport:
        report, loop = ClientReport(), asyncio.get_running_loop()

        def left() -> None:
            asyncio.run_coroutine_threadsafe(ask.left(), loop).result()

        await asyncio.to_thread(body, ask, report, left)
        return report

    return run
