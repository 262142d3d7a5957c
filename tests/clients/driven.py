"""What a test asks a client to do, and what the client told its user in the end.

Every client of every endpoint is driven through one function, `Run`, so that one test holds for all of them.
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
    """What the client raised, or the last event of a Responses stream, which raises nothing."""

    kind: str
    """The name of the exception's class."""
    status: int | None = None
    code: str | None = None
    request_id: str | None = None
    message: str = ""


@dataclass(slots=True)
class ClientReport:
    pieces: list[str] = field(default_factory=list)
    """The texts that a user would see appear, in their order."""
    finish: str | None = None
    tokens: int | None = None
    """Tokens of output, as the client counts them."""
    call: tuple[str, str] | None = None
    """A tool's name and its arguments, put together by the client."""
    request_id: str | None = None
    """Where a client shows it for a success."""
    failure: ClientFailure | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """One streaming request. The client makes no second try."""

    gateway: Gateway
    url: str = ""
    """Another way to the gateway."""
    prompt: str = "hi"
    max_tokens: int | None = 8
    model: str = "m"
    key: str = "sg-any"
    tools: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    leave_after: int | None = None
    """Pieces of text after which the client stops, in the way its documentation tells."""
    on_left: Callable[[], Awaitable[None]] | None = None
    """Runs when it has, while the client object is still open."""

    @property
    def base(self) -> str:
        return self.url or self.gateway.url

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]

    def leaves(self, told: ClientReport) -> bool:
        return self.leave_after is not None and len(told.pieces) >= self.leave_after

    async def left(self) -> None:
        if self.on_left is not None:
            await self.on_left()


Run = Callable[[ClientRequest], Awaitable[ClientReport]]


@dataclass(frozen=True, slots=True)
class DrivenClient:
    name: str
    path: str
    """The endpoint that it uses."""
    run: Run
    needs_node: bool = False
    errors: dict[int, str] = field(default_factory=dict)
    """The exception for each status; for 200 that of a stream which fails on its way."""


def in_a_thread(body: Callable[[ClientRequest, ClientReport, Callable[[], None]], None]) -> Run:
    """Runs a synchronous client; what it calls when it has left runs in the loop of the test."""

    async def run(ask: ClientRequest) -> ClientReport:
        told, loop = ClientReport(), asyncio.get_running_loop()

        def left() -> None:
            asyncio.run_coroutine_threadsafe(ask.left(), loop).result()

        await asyncio.to_thread(body, ask, told, left)
        return told

    return run
