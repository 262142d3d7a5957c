"""Cancel the work of a request when its client disconnects.

`until_client_gone` starts one watcher task per request. The watcher waits in `receive()` while the request
runs; nothing polls. It starts after the body has been read, because an ASGI server reports body and
disconnect on the same channel. The work runs in an anyio cancel scope. The scope repeats the cancellation
until the work has ended, so no code can swallow it. The watcher itself is cancelled and never awaited, so no
teardown can hang on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import anyio
from starlette.types import Receive, Scope

__all__ = ["ClientWatch", "abort_connection", "until_client_gone"]

ABORT_WAIT_S = 1.0
"""Longest wait for the server to report that an aborted connection is closed."""


class ClientWatch:
    """Knows whether the client is still there, and ends the work."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self.gone = False
        self.on_stop: Callable[[], None] = lambda: None
        """Called when the work has to end. Cancelling does not reach a task that never waits: it has to look
        for itself."""
        self._scope = scope

    def stop(self) -> None:
        """End the work. The client may still be there."""
        self.on_stop()
        self._scope.cancel()

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
