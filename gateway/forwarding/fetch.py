"""Ask a backend for an answer that is read whole, within limits of time and size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx

from slotgate.gateway.api.chunks import Identity, encode
from slotgate.gateway.api.json_repair import parse_lenient, parse_value
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.api.upstream_errors import error_of_answer
from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.backends.request_builder import was_sent_twice
from slotgate.gateway.http.errors import GatewayError, UpstreamError, upstream_timeout
from slotgate.gateway.settings import TimeoutsSettings

__all__ = ["AnswerRoom", "BufferedReply", "fetch"]

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""An answer is held in memory. 8,192 tokens with 20 log probabilities each take less than a third of this."""
_JSON = b"application/json"


class AnswerRoom:
    """The bytes that the answers to one request may still have, all together."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_ANSWER_BYTES

    def __repr__(self) -> str:
        return f"<AnswerRoom {self.left} bytes>"

    def take(self, size: int) -> None:
        """Raises `UpstreamError` if there is no room left."""
        self.left -= size
        if self.left < 0:
            raise UpstreamError("upstream_broken", f"the backend's answer is over {MAX_ANSWER_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class BufferedReply:
    status: int
    content_type: bytes
    body: bytes
    sent_twice: bool = False
    """True if a kept connection was closed at the send, and the request went out again on a new one."""

    @property
    def success(self) -> bool:
        return 200 <= self.status < 300

    def rewritten(
        self,
        identity: Identity,
        stamp: Callable[[Any, Identity], None],
        scrub: Callable[[bytes], bytes],
        *,
        token_usage: TokenUsage | None = None,
        withheld: tuple[str, ...] = (),
        may_be_text: bool = False,
    ) -> BufferedReply:
        """Return the backend's success under the gateway's identity. Raises the backend's error.

        `withheld` members are taken out after the token counts were read.
        """
        if self.success and may_be_text and self.content_type.lower().startswith(b"text/plain"):
            return self
        said = self.parsed(identity, stamp, scrub, token_usage=token_usage, withheld=withheld)
        return replace(self, content_type=_JSON, body=encode(said))

    def parsed(
        self,
        identity: Identity,
        stamp: Callable[[Any, Identity], None],
        scrub: Callable[[bytes], bytes],
        *,
        token_usage: TokenUsage | None = None,
        withheld: tuple[str, ...] = (),
    ) -> dict[str, Any] | list[Any]:
        """Return the same as `rewritten`, as a value that is not encoded yet."""
        if not self.success:
            raise self._failure(scrub)
        said = parse_value(self.body)
        if said is None:
            said = parse_lenient(self.body)
        if not isinstance(said, dict | list):
            raise UpstreamError("upstream_broken", "the backend's answer is not a JSON object")
        if token_usage is not None:
            token_usage.read_whole(said)
        for part in said if isinstance(said, list) else [said]:
            for name in withheld if isinstance(part, dict) else ():
                part.pop(name, None)
        stamp(said, identity)
        return said

    def _failure(self, scrub: Callable[[bytes], bytes]) -> GatewayError:
        error = error_of_answer(self.status, self.body, scrub)
        if self.sent_twice and error.retry_safe:
            return (
                _lost()
            )  # the process that it was sent to first is gone, and this request may be the reason
        return error


async def fetch(
    backend: Backend,
    request: httpx.Request,
    timeouts: TimeoutsSettings,
    *,
    on_head: Callable[[], None] = lambda: None,
    room: AnswerRoom | None = None,
) -> BufferedReply:
    """Return the complete answer. Raises `UpstreamError`, `retry_safe` if the backend was not reached.

    `room` is shared by several answers that are in memory together.
    """
    limits = _Limits(timeouts)
    room = room or AnswerRoom()
    body = bytearray()
    try:
        async with asyncio.timeout_at(limits.first_byte()) as deadline:
            response = await backend.transport.handle_async_request(request)
            on_head()
            try:
                deadline.reschedule(limits.idle())
                async for piece in response.aiter_raw():
                    body += piece
                    room.take(len(piece))
                    deadline.reschedule(limits.idle())
            finally:
                await response.aclose()
    except TimeoutError as error:
        raise upstream_timeout(limits.next) from error
    except httpx.TransportError as error:
        raise _failure(error) from error
    content_type = response.headers.get("content-type", "").encode()
    return BufferedReply(response.status_code, content_type, bytes(body), was_sent_twice(response))


class _Limits:
    """The deadlines of one request. It knows the name of the limit that expires next."""

    def __init__(self, timeouts: TimeoutsSettings) -> None:
        self.next = ""
        self._timeouts = timeouts
        self._time = asyncio.get_running_loop().time
        self._total_at = self._time() + timeouts.total_s

    def first_byte(self) -> float:
        return self._at("first_byte_timeout", self._timeouts.first_byte_s)

    def idle(self) -> float:
        return self._at("idle_timeout", self._timeouts.idle_s)

    def _at(self, name: str, seconds: float) -> float:
        at = self._time() + seconds
        self.next = name if at < self._total_at else "total_timeout"
        return min(at, self._total_at)


def _failure(error: httpx.TransportError) -> UpstreamError:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return UpstreamError("upstream_unreachable", "the backend could not be reached", retry_safe=True)
        case httpx.RemoteProtocolError():
            return UpstreamError("upstream_broken", "the backend sent something that is not HTTP")
    return _lost()


def _lost() -> UpstreamError:
    message = "the backend closed the connection before its answer was complete"
    return UpstreamError("upstream_truncated", message, lost=True)
