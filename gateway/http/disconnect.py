"""Cancel the work of a request when its client disconnects.

`until_client_gone` starts one watcher task per request. The watcher waits in `receive()` while the request
runs; nothing polls. It starts after the body has been read, because an ASGI server reports body and
disconnect on the same channel. The work runs in an anyio cancel scope. The scope repeats the cancellation
until the work has ended, so no code can swallow it. The watcher itself is cancelled and never awaited, so no
teardown can hang on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio
from starlette.types import Receive, Scope

__all__ = ["ClientWatch", "abort_connection", "until_client_gone"]

ABORT_WAIT_S = 1.0
"""Longest wait for the server to report that an aborted connection is closed."""


class ClientWatch:
    """Knows whether the client is still there, and ends the work if it is not.

    A task that is woken again and again is never found waiting, so the cancellation does not reach it. Such a
    task has to look at `stopped` itself.
    """

    def __init__(self, scope: anyio.CancelScope) -> None:
        self.gone = False
        """True once the client has left."""
        self.stalled = False
        """True once the request was given up because the client does not read."""
        self._scope = scope

    @property
    def stopped(self) -> bool:
        """True once the work has to end."""
        return self._scope.cancel_called

    def stop(self) -> None:
        """End the work, although the client may still be connected."""
        self._scope.cancel()

    def stall(self) -> None:
        """End the work because the client does not read, and others need the memory that it holds."""
        self.stalled = True
        self.stop()

    async def watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass  # a late piece of the body; the request was refused without reading it
        self.gone = True
        self.stop()


@contextmanager
def until_client_gone(receive: Receive) -> Iterator[ClientWatch]:
    """Cancel the block when the client disconnects. The code after the block runs in any case."""
    with anyio.CancelScope() as scope:
        watch = ClientWatch(scope)
        watcher = asyncio.get_running_loop().create_task(watch.watch(receive), name="client watch")
        try:
            yield watch
        finally:
            watcher.cancel()


async def abort_connection(scope: Scope, receive: Receive) -> None:
    """Close the connection at once and discard its unsent bytes, for a client that does not read.

    Returns when the server has reported the disconnect. Does nothing if the server has no `slotgate.abort`.
    """
    abort = scope.get("extensions", {}).get("slotgate.abort")
    if abort is not None:
        abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(ABORT_WAIT_S):
                while (await receive())["type"] != "http.disconnect":
                    pass
