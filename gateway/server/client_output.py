"""The way of answers to one client connection: heads, direct writes, and the delivery of the last byte.

uvicorn writes a head alone. Here it waits for the bytes that follow in the same turn of the event loop, so
the client wakes up once. A 100 Continue comes before the head and waits in its place. Code that closes the
connection, or writes to the transport itself, has to call `flush` first. The next request does not begin
before the next turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from slotgate.gateway.server.answer_delivery import AnswerDelivery
from slotgate.gateway.server.chunk_writer import ChunkWriter
from slotgate.gateway.server.expectation import closing_if_early
from slotgate.gateway.server.http10 import close_delimited

__all__ = ["ClientOutput"]


@dataclass(frozen=True, slots=True)
class CycleTransport:
    """The transport as uvicorn's request cycle sees it. Only the connection itself closes the real one."""

    write: Callable[[bytes], None]
    is_closing: Callable[[], bool]
    close: Callable[[], None]


class ClientOutput:
    """Belongs to one connection. It serves one answer at a time, from `begin` to `end`."""

    def __init__(
        self, transport: asyncio.Transport, flow: FlowControl, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.writer: ChunkWriter | None = None
        """The direct writer of the answer that is under way."""
        self.delivery: AnswerDelivery | None = None
        """The delivery of the answer that is under way."""
        self._transport = transport
        self._flow = flow
        self._loop = loop
        self._head_due = False
        """True until the head of the answer (or a 100 Continue) is written."""
        self._head = b""
        """The head of the answer, while it waits to be sent together with the first bytes of the body."""

    def __repr__(self) -> str:
        return f"<ClientOutput {self.writer!r}, {len(self._head)} bytes of a head>"

    def begin(
        self,
        cycle: RequestResponseCycle,
        app: ASGIApp,
        *,
        is_closing: Callable[[], bool],
        close: Callable[[], None],
    ) -> ASGIApp:
        """Let the cycle write its answer here. Return the application that answers the request."""
        if cycle.waiting_for_100_continue:
            app = closing_if_early(app, cycle)
        self._head_due = True
        cycle.transport = cast("asyncio.Transport", CycleTransport(self.write, is_closing, close))
        extensions = cast("dict[str, Any]", cycle.scope)["extensions"]
        self.delivery = extensions["slotgate.delivery"] = AnswerDelivery(self._transport, self._loop)
        if cycle.scope["http_version"] in ("0.9", "1.0"):
            return close_delimited(app, cycle)
        self.writer = extensions["slotgate.write"] = ChunkWriter(cycle, self._flow, self._transport.write)
        return app

    def write(self, data: bytes) -> None:
        """Write bytes of the answer. A head is kept until the next bytes, or the next turn of the loop."""
        if self._head_due:
            self._head_due = False
            self._head = data
            self._loop.call_soon(self.flush)
        elif self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Write the head if no other bytes have followed it yet."""
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def judge(self) -> None:
        """Look again whether direct writes are allowed: the client is behind, or keeps up, or has left."""
        if self.writer is not None:
            self.writer.judge()

    def paused(self) -> None:
        """The client is behind."""
        self.judge()
        if self.delivery is not None:
            self.delivery.paused()

    def resumed(self) -> None:
        """The client keeps up again."""
        self.judge()
        if self.delivery is not None:
            self.delivery.resumed()

    def complete(self, then: Callable[[], None]) -> None:
        """The answer is complete. Call `then` once all of it is sent."""
        self._end_writer()
        self.flush()
        if self.delivery is None:
            then()
        else:
            self.delivery.written(then)

    @property
    def sending(self) -> bool:
        """True while an answer is complete and bytes of it wait to be sent."""
        return self.delivery is not None and self.delivery.sending

    def lost(self) -> None:
        """The client does not read the answer any more."""
        delivery, self.delivery = self.delivery, None
        if delivery is not None:
            delivery.lost()
        self._end_writer()

    def _end_writer(self) -> None:
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.end()
