"""One watcher a request: work under `until_client_gone` is cancelled when the client leaves.

The watcher waits in `receive()` for as long as the request runs; nothing polls. It starts once the body is
read, because a server reports body and disconnect on one channel. Cancelling goes through an anyio
scope, which delivers it again until the work has ended: a cancellation cannot be swallowed on the way.
The watcher itself is cancelled and never awaited, so no teardown can hang on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import anyio
from starlette.types import Receive, Scope

__all__ = ["ClientWatch", "abort_connection", "until_client_gone"]

ABORT_WAIT_S = 1.0


class ClientWatch:
    """What is known of the client."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self.gone = False
        self.on_stop: Callable[[], None] = lambda: None
        """Called when the work has to end. A task that is woken without a pause is never found waiting, so
        cancelling alone would not reach it: it has to look for itself."""
        self._scope = scope

    def stop(self) -> None:
        """End the work, although the client may still be there."""
        self.on_stop()
        self._scope.cancel()

    async def watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass  # a late piece of a body that was not wanted
        self.gone = True
        self.stop()


@contextmanager
def until_client_gone(receive: Receive) -> Iterator[ClientWatch]:
    """Cancel the block when the client leaves; the block's end is reached either way."""
    with anyio.CancelScope() as scope:
        watch = ClientWatch(scope)
        watcher = asyncio.get_running_loop().create_task(watch.watch(receive), name="client watch")
        try:
            yield watch
        finally:
            watcher.cancel()


async def abort_connection(scope: Scope, receive: Receive) -> None:
    """Close the connection of a client that does not read, unsent bytes and all, where the server offers it;
    returns when the server knows."""
    abort = scope.get("extensions", {}).get("slotgate.abort")
    if abort is not None:
        abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(ABORT_WAIT_S):
                while (await receive())["type"] != "http.disconnect":
                    pass
