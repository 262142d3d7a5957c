"""The recorder passes requests on to an upstream unchanged, and keeps the exchanges in files.

    client -> read body -> upstream --reads--> Take --> client
                                                 '----> file, when the exchange has ended

The client gets the status, headers, bytes, pauses and end of connection that the upstream gave. The upstream
is read as fast as it writes, so a slow client does not change the recorded times.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import structlog
from starlette.types import Receive, Scope, Send

from slotgate.gateway.http.disconnect import until_client_gone
from slotgate.gateway.http.error_formats import error_format_for
from slotgate.gateway.http.errors import ClientError, ClientGone, GatewayError, UpstreamError
from slotgate.gateway.http.headers import Headers
from slotgate.gateway.http.replies import send_error
from slotgate.gateway.http.request_body import read_body
from slotgate.gateway.testing.cassette.cassette import CassetteError, CassetteFolder, RecordingFile
from slotgate.gateway.testing.cassette.hanging_up import hang_up
from slotgate.gateway.testing.cassette.redaction import Redaction
from slotgate.gateway.testing.cassette.request import STATUS_PATHS, RecordedRequest, as_recorded
from slotgate.gateway.testing.cassette.response_recording import HOP_BY_HOP, MAX_KEPT_BYTES, ResponseRecording
from slotgate.gateway.upstream import UpstreamRequest, UpstreamTransport
from slotgate.gateway.upstream.address import BackendAddress

__all__ = ["Recorder", "UpstreamFault"]

CONNECT_S = 5.0
MAX_REQUEST_BYTES = 256 * 1024 * 1024
BODY_S = 600.0
CLOSED_WITHIN_S = 0.5
"""Time in which an upstream that closes behind its streams, as llama-server does, closes."""
_ASKED_ANEW = HOP_BY_HOP | {b"content-length", b"accept-encoding", b"expect"}
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
log = structlog.stdlib.get_logger(__name__)


class UpstreamFault(Exception):
    """The upstream cannot be recorded. The text is the reason."""


class Recorder:
    """An ASGI app for use as `async with Recorder(url, folder) as recorder:`.

    Entering the block records the status of the upstream. `api_key` replaces the keys that clients present.
    Raises `UpstreamFault` if the upstream is not ready within `ready_within_s`, and `CassetteError` if the
    folder cannot be written to.
    """

    def __init__(
        self, upstream: str, folder: Path, *, api_key: str | None = None, ready_within_s: float = 60.0
    ) -> None:
        url = self._url = _server_url(upstream)
        self._key = api_key
        self._ready_within_s = ready_within_s
        self._folder = CassetteFolder(folder)
        context = ssl.create_default_context() if url.scheme == "https" else None
        self._transport = UpstreamTransport(
            BackendAddress.of(url, None), connect_timeout_s=CONNECT_S, ssl_context=context, keep_idle=False
        )
        self.kept = 0
        """The number of files written."""

    def __repr__(self) -> str:
        return f"<Recorder of {self._url}, {self.kept} kept>"

    async def __aenter__(self) -> Self:
        try:
            await self._ask_status()
        except BaseException:
            await self._transport.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._exchange(scope, receive, send)
        except ClientGone:
            pass
        except GatewayError as error:
            await send_error(send, error, error_format_for(scope["path"]))

    # -- one exchange

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in _METHODS:
            message = f"{scope['method']} requests are not recorded"
            raise ClientError("method_not_allowed", message, status=405)
        body = await read_body(scope, receive, max_bytes=MAX_REQUEST_BYTES, timeout_s=BODY_S)
        path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
        asked, redaction = as_recorded(scope["method"], path, query, scope["headers"], body)
        file = None if asked.is_status else self._folder.new_file(asked)
        recording = ResponseRecording()
        try:
            with until_client_gone(receive):
                await self._send(self._request(scope, body), recording)
                await recording.relay(send)
            # Outside the block, because servers report a disconnect behind a complete response.
            await recording.see_close(CLOSED_WITHIN_S)
            if recording.closes:
                hang_up(scope)
        finally:
            recording.close()
        if file is not None and recording.has_something:
            await self._keep(file, recording, asked, redaction)

    async def _send(self, request: httpx.Request, recording: ResponseRecording) -> None:
        try:
            recording.sent_on(await self._transport.open(UpstreamRequest.of(request), recording))
        except httpx.TransportError as error:
            message = f"{self._url} cannot be reached: {error}"
            raise UpstreamError("upstream_unreachable", message) from error

    async def _keep(
        self, file: RecordingFile, recording: ResponseRecording, asked: RecordedRequest, redaction: Redaction
    ) -> None:
        if recording.too_long:
            log.warning("not recorded: the answer is too long", file=file.name, most_bytes=MAX_KEPT_BYTES)
            return
        exchange = recording.exchange(asked, redaction)
        try:
            await asyncio.to_thread(self._folder.keep, file, exchange)
        except CassetteError as error:
            log.error("not recorded", reason=str(error))
            return
        self.kept += 1
        response = exchange.response
        facts = {"status": response.status, "ending": response.ending.value, "reads": len(response.reads)}
        log.info("recorded", file=file.name, **facts)

    def _request(self, scope: Scope, body: bytes) -> httpx.Request:
        headers: Headers = [pair for pair in scope["headers"] if pair[0].lower() not in _ASKED_ANEW]
        if self._key is not None:
            headers = [pair for pair in headers if pair[0].lower() not in (b"authorization", b"x-api-key")]
            headers.append((b"authorization", f"Bearer {self._key}".encode()))
        headers.append((b"accept-encoding", b"identity"))
        target = scope["raw_path"]
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        url = self._url.copy_with(raw_path=self._url.raw_path.rstrip(b"/") + target)
        return httpx.Request(scope["method"], url, headers=headers, content=body or None)

    # -- the status of the upstream, at the start

    async def _ask_status(self) -> None:
        """Wait until the upstream is ready, then record those of the status paths that it serves.

        Later requests for these paths are passed on and not recorded.
        """
        await self._until_ready()
        for path in STATUS_PATHS:
            recording = ResponseRecording()
            await self._ask(path, recording)
            if recording.status == 200:
                request = RecordedRequest("GET", path)
                redaction = Redaction([self._key.encode()] if self._key else [])
                await self._keep(self._folder.new_file(request), recording, request, redaction)

    async def _until_ready(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._ready_within_s
        while True:
            recording = ResponseRecording()
            try:
                await self._ask("/health", recording)
                said = f"{self._url} is not ready: /health answered {recording.status}"
            except httpx.TransportError as error:
                said = f"{self._url} cannot be reached: {error}"
            if recording.status is not None and recording.status != 503:
                return
            if loop.time() >= until:
                raise UpstreamFault(said)
            await asyncio.sleep(min(0.2, max(0.0, until - loop.time())))

    async def _ask(self, path: str, recording: ResponseRecording) -> None:
        scope = {"method": "GET", "raw_path": path.encode(), "query_string": b"", "headers": []}
        recording.sent_on(
            await self._transport.open(UpstreamRequest.of(self._request(scope, b"")), recording)
        )
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    await recording.over.wait()
        finally:
            recording.close()


def _server_url(text: str) -> httpx.URL:
    """Return the URL without user and password, which errors would show. Raises `UpstreamFault`."""
    try:
        url = httpx.URL(text.rstrip("/"))
    except httpx.InvalidURL as error:
        raise UpstreamFault(f"{text} is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise UpstreamFault(f"{text} is not the URL of a server (http://host:port)")
    return url.copy_with(userinfo=b"")
