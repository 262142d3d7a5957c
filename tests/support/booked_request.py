"""A request whose books are read, the ways in which it can end, and the figures that it leaves.

`tests/support/books.py` sends it and reads the books.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.client import RawClient
from tests.support.endpoints import Way
from tests.support.script import Script
from tests.support.virtual_gateway import VirtualGateway, VirtualUpstream

__all__ = [
    "ESTIMATED",
    "GONE",
    "LOADING",
    "MORTAL",
    "TAKEN",
    "Case",
    "Ending",
    "Prompt",
    "Row",
    "cancel",
    "die",
    "drain",
    "leave",
    "stay",
    "supersede",
]

Prompt = int | Literal["~"]
"""The tokens of a prompt; `~` if they are estimated."""
ESTIMATED: Literal["~"] = "~"
GONE = "gone"
"""A model whose backend has stopped a moment ago, which the gateway does not know yet."""
LOADING = "lame"
"""A model with two backends. The one with most slots says that it loads its model."""
MORTAL = "mortal"
"""The model of the backend that `die` kills."""
TAKEN = "taken"
"""A model whose only slot is taken."""
_OPERATOR = b"authorization: Bearer sg-operator"


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one request in all books."""

    status: int
    prompt: Prompt
    cached: int
    completion: int
    partial: bool
    records: int
    requests: int
    """The part of the requests per minute that it took."""
    seconds: float
    """The slot time that its tenant is charged for, rounded down to half slot-seconds.

    An abandoned slot is seen to be idle in less than that.
    """
    live: tuple[Prompt, int] | None
    """Prompt and completion tokens in the live view before the end; None if it is not there."""


@dataclass(slots=True)
class Case:
    """A request under way."""

    gateway: VirtualGateway
    way: Way
    tenant: str
    """Also the id of the request."""
    stream: bool
    wide: bool
    """The request has an array of three elements."""
    client: RawClient
    mortal: VirtualUpstream

    def request(self, model: str, request_id: str = "later") -> bytes:
        members: dict[str, Any] = {"stream": True} if self.stream else {}
        members |= (self.way.sample.wide or {}) if self.wide else {}
        headers = (
            b"authorization: Bearer sg-" + self.tenant.encode(),
            b"x-request-id: " + request_id.encode(),
            b"x-slotgate-supersede: key",
        )
        return self.way.request(*headers, model=model, **members)

    async def facts(self) -> dict[str, Any] | None:
        """Return what `/admin/requests` says of the request."""
        async with await self.gateway.client() as operator:
            await operator.request("GET", "/admin/requests", _OPERATOR)
            listed = (await operator.json())["requests"]
        return next((facts for facts in listed if facts["id"] == self.tenant), None)


Action = Callable[[Case], Awaitable[None]]


# -- what the client and the operator do


async def stay(_: Case) -> None:
    """Read the answer to its end."""


async def leave(case: Case) -> None:
    case.client.close()


async def cancel(case: Case) -> None:
    async with await case.gateway.client() as operator:
        await operator.request("POST", f"/admin/requests/{case.tenant}/cancel", _OPERATOR)
        assert operator.status == 200


async def supersede(case: Case) -> None:
    """Send a later request with the same key. It leaves before it gets a slot, so it costs nothing."""
    async with await case.gateway.client() as later:
        await later.send(case.request(TAKEN))
        await asyncio.sleep(0.05)


async def die(case: Case) -> None:
    """Kill the backend, and start it again after a moment."""
    case.mortal.stop_listening()
    case.mortal.abort_all()
    await asyncio.sleep(0.2)
    await case.mortal.listen()


async def drain(case: Case) -> None:
    """Shut the gateway down, with a grace period that is too short for the request."""
    parts = case.gateway.parts
    await case.gateway.server.drain(refuse=parts.drain, cancel=parts.runtime.cancel_running)


@dataclass(frozen=True, slots=True)
class Ending:
    """The way in which a request ends, and the figures that it leaves."""

    script: Callable[[Way], Script]
    row: Row
    act: Action = stay
    at: float = 1.5
    """Seconds after the request at which the live view is read, and then `act` is called."""
    model: str = "m"
    others: Callable[[Way], Script] | None = None
    """The script for all elements of an array but the first one; by default that of the first."""
