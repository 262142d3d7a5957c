"""A whole answer on its way to a client that may read slowly.

Its unread bytes draw on the same budget as the buffers of streams. If the budget is spent, the one that holds
most is given up. A client that takes nothing is given up by the server (`http/delivery.py`).
"""

from __future__ import annotations

import asyncio

from starlette.types import Message, Send

from slotgate.gateway.forwarding.fetch import BufferedReply
from slotgate.gateway.http.disconnect import ClientWatch
from slotgate.gateway.http.replies import send_whole
from slotgate.gateway.streaming.buffer_budget import BufferBudget

__all__ = ["UnreadAnswer"]


class UnreadAnswer:
    """`tenant` is the one whose share of the budget it takes. `client` is told if it is given up."""

    def __init__(self, budget: BufferBudget, tenant: str, client: ClientWatch) -> None:
        self.tenant = tenant
        self.stalled = False
        """True while a `send` is under way."""
        self._budget = budget
        self._client = client

    def __repr__(self) -> str:
        return f"<UnreadAnswer {self.tenant}{' stalled' if self.stalled else ''}>"

    async def send(self, send: Send, reply: BufferedReply, *, within_s: float) -> None:
        """Send the answer. The client is given up if that takes longer than `within_s`."""
        unread = len(reply.body)

        async def counted(message: Message) -> None:
            nonlocal unread
            self._budget.hold(self, unread)
            self.stalled = True
            await send(message)
            self.stalled = False
            unread -= len(message.get("body", b""))

        limit = asyncio.get_running_loop().call_later(within_s, self.cancel)
        try:
            await send_whole(counted, reply.status, [(b"content-type", reply.content_type)], reply.body)
        finally:
            limit.cancel()
            self._budget.release(self)

    def cancel(self) -> None:
        """Give the client up: it takes too long, or others need the memory."""
        self._client.stall()
