"""The player answers requests with recordings.

* A request gets the recording of an equal request. The next equal request gets the next recording, and after
  the last recording the last one again.
* A request without a recording gets 404. The answer names the nearest recording and the differences.
* Each recorded read is one write, at the recorded time divided by `speed`. Times count from the end of the
  request. With `AT_ONCE` nothing waits.
* A response that ended early ends at the same byte: the connection is closed without the end of the message.

The answers depend only on the recordings and on the order of equal requests.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass

import structlog
from starlette.types import Receive, Scope, Send

from slotgate.gateway.http.disconnect import until_client_gone
from slotgate.gateway.http.error_formats import error_format_for
from slotgate.gateway.http.errors import ClientError, ClientGone, GatewayError
from slotgate.gateway.http.replies import send_error, send_json
from slotgate.gateway.http.request_body import read_body
from slotgate.gateway.testing.cassette.cassette import Cassette
from slotgate.gateway.testing.cassette.difference import Difference, nearest
from slotgate.gateway.testing.cassette.exchange import Ending, RecordedExchange, RecordedResponse
from slotgate.gateway.testing.cassette.hanging_up import hang_up
from slotgate.gateway.testing.cassette.request import RecordedRequest, as_recorded

__all__ = ["AT_ONCE", "Miss", "Player", "speed_of"]

AT_ONCE = math.inf
MAX_BODY_BYTES = 256 * 1024 * 1024
BODY_S = 600.0
MAX_MISSES = 1000
"""The number of misses that are kept. Later misses are answered and not kept."""
_SHOWN = 8
"""The number of differences that an answer names."""
log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Miss:
    """A request without a recording."""

    request: RecordedRequest
    nearest: str | None
    """The file of the recording that is most like the request, or None without recordings."""
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        said = f"there is no recording of {self.request.method} {self.request.path} with this content"
        if self.nearest is None:
            return f"{said}; the cassette is empty"
        shown = "; ".join(map(str, self.differences[:_SHOWN]))
        more = len(self.differences) - _SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        return f"{said}; the nearest is {self.nearest}, which differs in {shown}{rest}"


class Player:
    """An ASGI app that plays a cassette."""

    def __init__(self, cassette: Cassette, *, speed: float = AT_ONCE) -> None:
        """`speed` 1 plays at the recorded times, 10 plays ten times as fast."""
        self._cassette = cassette
        self._speed = speed
        self._asked: dict[str, int] = {}
        self.played: Counter[str] = Counter()
        """File name -> the number of times it was played. Status requests do not count."""
        self.misses: list[Miss] = []
        """Requests without a recording, at most `MAX_MISSES`."""

    def __repr__(self) -> str:
        return f"<Player of {self._cassette!r}, {self.played.total()} played, {len(self.misses)} misses>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._answer(scope, receive, send)
        except ClientGone:
            pass
        except GatewayError as error:
            await send_error(send, error, error_format_for(scope["path"]))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(scope, receive, max_bytes=MAX_BODY_BYTES, timeout_s=BODY_S)
        began_at = asyncio.get_running_loop().time()
        path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
        request, _ = as_recorded(scope["method"], path, query, scope["headers"], body)
        exchange = self._next(request)
        if exchange is not None:
            self.played.update([] if request.is_status else [exchange.name])
            with until_client_gone(receive):
                await self._play(exchange.response, began_at, send)
            if exchange.response.closes or exchange.response.ending is not Ending.COMPLETE:
                hang_up(scope)
        elif request == RecordedRequest("GET", "/health"):
            # the recorded upstream had no /health, but gateways ask for it
            await send_json(send, 200, {"status": "ok"})
        else:
            raise _not_served(request) if request.is_status else self._missed(request)

    def _next(self, request: RecordedRequest) -> RecordedExchange | None:
        recordings = self._cassette.of(request)
        if not recordings:
            return None
        asked = self._asked.get(request.key, 0)
        self._asked[request.key] = asked + 1
        return recordings[min(asked, len(recordings) - 1)]

    async def _play(self, response: RecordedResponse, began_at: float, send: Send) -> None:
        await self._until(began_at, response.head_ms)
        if response.status is not None:
            headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            for read in response.reads:
                await self._until(began_at, read.ms)
                await send({"type": "http.response.body", "body": read.data, "more_body": True})
            await self._until(began_at, response.end_ms)
            if response.ending is Ending.COMPLETE:
                await send({"type": "http.response.body", "body": b""})

    async def _until(self, began_at: float, ms: float) -> None:
        if self._speed != AT_ONCE:
            due = began_at + ms / 1000 / self._speed
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    def _missed(self, request: RecordedRequest) -> ClientError:
        found = nearest(self._cassette.exchanges, request)
        miss = Miss(request, None, ()) if found is None else Miss(request, found[0].name, tuple(found[1]))
        if len(self.misses) < MAX_MISSES:
            self.misses.append(miss)
        where = [difference.where for difference in miss.differences[:_SHOWN]]
        log.warning(
            "not recorded", method=request.method, path=request.path, nearest=miss.nearest, differs=where
        )
        return ClientError("not_recorded", str(miss), status=404)


def _not_served(request: RecordedRequest) -> ClientError:
    """Return the error for a status path that the upstream did not serve. It is not a miss: gateways poll."""
    return ClientError("not_recorded", f"the upstream did not serve {request.path}", status=404)


def speed_of(word: str) -> float:
    """Parse a speed: `recorded`, `max`, or a factor. Raises `ValueError`."""
    named = {"recorded": 1.0, "max": AT_ONCE}
    if word in named:
        return named[word]
    try:
        speed = float(word)
    except ValueError as error:
        raise ValueError(f"{word!r} is neither recorded, max nor a number") from error
    if not 0 < speed < math.inf:
        raise ValueError(f"{word!r} is not a speed: it must be above 0")
    return speed
