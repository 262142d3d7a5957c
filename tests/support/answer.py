"""Sends one request on a connection of its own and reads the whole response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from tests.support.client import RawClient, request_bytes
from tests.support.http1 import Head


@dataclass(frozen=True, slots=True)
class WholeResponse:
    status: int
    head: Head
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        return self.head.get(name)

    @property
    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = orjson.loads(self.body)
        return content

    @property
    def error(self) -> dict[str, Any]:
        """Return the error object in OpenAI's shape, after checking the body and the headers of errors."""
        assert self.header(b"x-request-id"), self
        assert self.header(b"x-slotgate-reason"), self
        if self.status in (429, 503):
            assert int(self.header(b"retry-after") or 0) >= 1, self
        assert self.header(b"content-type") == b"application/json", self
        content = self.json
        assert list(content) == ["error"], content
        error: dict[str, Any] = content["error"]
        assert isinstance(error["message"], str), error
        assert error["message"], error
        assert isinstance(error["type"], str), error
        return error


async def exchange(url: str, request: bytes, within: float = 5.0) -> WholeResponse:
    """Send these bytes and read one response."""
    async with await RawClient.connect(url) as client:
        await client.send(request)
        head = await client.head(within)
        return WholeResponse(client.status, head, await client.body(within))


async def fetch(
    url: str, method: str, target: str, *headers: bytes, json: object = None, body: bytes = b""
) -> WholeResponse:
    return await exchange(url, request_bytes(method, target, *headers, json=json, body=body))
