"""An ASGI server in memory: it drives an app with one request, under the test's control.

It behaves as uvicorn does: `send()` returns normally after the client left, and only `receive()` reports it.
A client that stops reading makes `send()` wait, and its leaving ends that wait. It also checks the ASGI rules
(one start, nothing after the end) and fails the app's task if the app breaks them. It works on virtual time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import orjson
from starlette.types import ASGIApp, Message, Scope

from slotgate.gateway.http.headers import Headers
from tests.support.pulse import Pulse
from tests.support.sse import FrameReader


class AsgiPeer:
    """`async with Peer(app, json={...}) as peer:` starts the app; leaving disconnects and awaits its end."""

    def __init__(
        self,
        app: ASGIApp,
        path: str = "/v1/chat/completions",
        *,
        method: str = "POST",
        headers: Sequence[tuple[bytes, bytes]] = (),
        json: object = None,
        body: bytes | None = None,
        query: bytes = b"",
        client: tuple[str, int] = ("127.0.0.1", 50000),
        scope: Scope | None = None,
    ) -> None:
        """`json` or `body` is the whole request body; with neither, the test feeds it (`feed`)."""
        if json is not None:
            body = orjson.dumps(json)
            headers = [(b"content-type", b"application/json"), *headers]
        if body is not None:
            headers = [(b"content-length", b"%d" % len(body)), *headers]
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1:8080"), *headers],
            "client": client,
            "server": ("127.0.0.1", 8080),
            "state": {},
            **(scope or {}),
        }
        self.status: int | None = None
        self.headers: Headers = []
        self.body = bytearray()
        """The bytes that the client has read."""
        self.frames: list[bytes] = []
        """The complete frames that the client has read."""
        self.sent = 0
        """The number of `send` calls that returned before the client left."""
        self.blocked = 0
        """The number of `send` calls that wait because the client does not read."""
        self.gone = False
        self.complete = False
        """True if the client has the whole response."""
        self.pulse = Pulse()
        self.task: asyncio.Task[None] | None = None
        self._app = app
        self._inbox: deque[Message] = deque()
        self._frames_read = 0
        self._frame_reader = FrameReader()
        self._hold: Callable[[bytes], bool] | None = None
        if body is not None:
            self.feed(body, more=False)

    def __repr__(self) -> str:
        state = "gone" if self.gone else "complete" if self.complete else "reading"
        return f"<AsgiPeer {state}, status {self.status}, {len(self.frames)} frames, {self.blocked} blocked>"

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self._run(), name=f"peer {self.scope['path']}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect()
        try:
            await self.ended()
        except Exception:
            if error is None:
                raise

    async def _run(self) -> None:
        try:
            await self._app(self.scope, self._receive, self._send)
        finally:
            asyncio.get_running_loop().call_soon(self.pulse.beat)

    # -- actions of the client

    def feed(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of the request body; `more=False` ends it."""
        self._inbox.append({"type": "http.request", "body": data, "more_body": more})
        self.pulse.beat()

    def disconnect(self) -> None:
        """Leave. Waiting sends return, as in uvicorn."""
        self.gone = True
        self.pulse.beat()

    def hold(self, when: Callable[[bytes], bool] = lambda _: True) -> None:
        """Stop reading. The next send whose body satisfies `when`, and all sends after it, wait."""
        self._hold = when

    def release(self) -> None:
        """Resume reading."""
        self._hold = None
        self.pulse.beat()

    # -- waits of the test

    async def until(self, condition: Callable[[], object], within: float = 5.0) -> None:
        await self.pulse.until(lambda: condition() or self._crashed(), self, within)
        if not condition():
            self._raise_crash()

    async def started(self, within: float = 5.0) -> int:
        """Return the status, once the response has begun."""
        await self.until(lambda: self.status is not None, within)
        assert self.status is not None
        return self.status

    async def next_frame(self, within: float = 5.0) -> bytes:
        """Return the next server-sent frame. Raises AssertionError if the response ends before it."""
        await self.until(lambda: len(self.frames) > self._frames_read or self.complete, within)
        assert len(self.frames) > self._frames_read, f"no further frame: {self}"
        self._frames_read += 1
        return self.frames[self._frames_read - 1]

    async def whole(self, within: float = 5.0) -> bytes:
        """Return the body, once the response is complete."""
        await self.until(lambda: self.complete, within)
        return bytes(self.body)

    async def ended(self, within: float = 5.0) -> None:
        """Wait until the app has returned. Raises the app's exception."""
        assert self.task is not None
        done, _ = await asyncio.wait({self.task}, timeout=within)
        if not done:
            self.task.cancel()
            raise AssertionError(f"the app did not return within {within} s: {self}, {self.task}")
        await self.task

    def header(self, name: bytes) -> bytes | None:
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2, f"{name!r} came {len(values)} times"
        return values[0] if values else None

    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = orjson.loads(bytes(self.body))
        return content

    def _crashed(self) -> bool:
        """Return True if the app raised, or left the client without a complete response."""
        if self.task is None or not self.task.done():
            return False
        failed = self.task.cancelled() or self.task.exception() is not None
        return failed or not (self.complete or self.gone)

    def _raise_crash(self) -> None:
        assert self.task is not None
        if not self.task.cancelled():
            self.task.result()
        raise AssertionError(f"the app returned without completing its response: {self}")

    # -- ASGI

    async def _receive(self) -> Message:
        while not self._inbox and not self.gone and not self.complete:
            await self.pulse.next()
        if self.gone or self.complete:
            return {"type": "http.disconnect"}
        return self._inbox.popleft()

    async def _send(self, message: Message) -> None:
        if self._hold is not None and self._hold(message.get("body", b"")):
            self._hold = lambda _: True
            await self._wait_for_release()
        if self.gone:
            return
        self._take(message)
        self.sent += 1
        self.pulse.beat()

    async def _wait_for_release(self) -> None:
        self.blocked += 1
        self.pulse.beat()
        try:
            while self._hold is not None and not self.gone:
                await self.pulse.next()
        finally:
            self.blocked -= 1

    def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert self.status is None, "a second http.response.start"
            self.status = message["status"]
            self.headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            assert all(name == name.lower() for name, _ in self.headers), self.headers
            return
        assert message["type"] == "http.response.body", message
        assert self.status is not None, "body before http.response.start"
        assert not self.complete, "body after the end of the response"
        self.body += message.get("body", b"")
        self.frames += self._frame_reader.feed(message.get("body", b""))
        self.complete = not message.get("more_body", False)
