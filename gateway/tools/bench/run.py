"""The load: a number of concurrent clients, each of which sends its next request when its last one has ended.

On the gateway's own machine the load takes CPU time from the gateway, which changes the figures. `make bench`
compares slotgate with other gateways.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx
import orjson

from slotgate.gateway.tools.bench.figures import BenchFigures
from slotgate.gateway.tools.bench.request import BenchRequest
from slotgate.gateway.upstream import UpstreamRequest, UpstreamTransport
from slotgate.gateway.upstream.address import BackendAddress

__all__ = ["BenchOptions", "run_bench"]

CONNECT_S = 5.0
PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of `slotgate bench`."""

    url: str
    key: str | None = field(repr=False)
    streams: int = 8
    """The number of concurrent streams."""
    requests: int | None = None
    """The total number of requests. None sends requests for `seconds`."""
    seconds: float = 10.0
    model: str | None = None
    prompt: str = "Tell a story."
    max_tokens: int = 64
    timeout_s: float = 300.0
    """The time limit of one answer."""

    @property
    def body(self) -> bytes:
        model = {} if self.model is None else {"model": self.model}
        said = [{"role": "user", "content": self.prompt}]
        return orjson.dumps({**model, "messages": said, "max_tokens": self.max_tokens, "stream": True})

    def outgoing(self) -> UpstreamRequest:
        """Return the request, which is the same each time."""
        parts = urlsplit(self.url)
        lines = [f"POST {parts.path.rstrip('/')}{PATH} HTTP/1.1", f"host: {parts.netloc}"]
        lines += ["content-type: application/json", f"content-length: {len(self.body)}"]
        if self.key is not None:
            lines.append(f"authorization: Bearer {self.key}")
        return UpstreamRequest("\r\n".join([*lines, "", ""]).encode(), (self.body,))


def run_bench(options: BenchOptions) -> BenchFigures:
    """Put load on the gateway and return the figures."""
    return asyncio.run(_Bench(options).run())


class _Bench:
    def __init__(self, options: BenchOptions) -> None:
        self._options = options
        self._outgoing = options.outgoing()
        self._requests: list[BenchRequest] = []
        self._until = 0.0

    async def run(self) -> BenchFigures:
        options = self._options
        url = httpx.URL(options.url)
        context = ssl.create_default_context() if url.scheme == "https" else None
        transport = UpstreamTransport(
            BackendAddress.of(url, None), connect_timeout_s=CONNECT_S, ssl_context=context
        )
        began = time.monotonic()
        self._until = began + options.seconds
        turns = self._turns()
        try:
            async with asyncio.TaskGroup() as clients:
                for _ in range(options.streams):
                    clients.create_task(self._client(transport, turns))
        finally:
            await transport.aclose()
        ended = max((request.ended_at for request in self._requests), default=began)
        return BenchFigures.of(self._requests, ended - began)

    def _turns(self) -> Iterator[None]:
        """Yield once for each request that may begin. All clients share the iterator."""
        if self._options.requests is not None:
            yield from [None] * self._options.requests
        else:
            while time.monotonic() < self._until:
                yield None

    async def _client(self, transport: UpstreamTransport, turns: Iterator[None]) -> None:
        for _ in turns:
            request = BenchRequest()
            self._requests.append(request)
            await self._send(transport, request)
            if not request.ok:
                await asyncio.sleep(0.1)  # a client that is refused at once must not flood the gateway

    async def _send(self, transport: UpstreamTransport, request: BenchRequest) -> None:
        try:
            exchange = await transport.open(self._outgoing, request)
        except httpx.TransportError as error:
            request.fail(f"not reached: {error}")
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.timeout_s):
                await request.over.wait()
        if not request.over.is_set():
            request.failure = f"the answer did not end within {self._options.timeout_s:g} s"
        exchange.close()
