"""Reading and editing the JSON bodies of requests, the big ones one at a time.

Parsing a body of many megabytes holds the event loop for tens of milliseconds. A burst of such bodies would
hold it for the sum, so each big body waits for its turn, and the loop runs between two steps of one. A thread
does not help with a step that holds the interpreter lock, as parsing does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson

from slotgate.gateway.api.json_extent import (
    MAX_CONTAINERS,
    MAX_NAMES,
    MAX_VALUES,
    is_within_bounds,
    may_be_beyond_bounds,
)
from slotgate.gateway.api.json_splice import splice
from slotgate.gateway.api.media_locations import AllowedMedia, MediaSearch
from slotgate.gateway.api.prompt_size import PromptSize, measured
from slotgate.gateway.http.errors import ClientError

__all__ = ["BIG_BODY_BYTES", "JsonBodyCodec"]

BIG_BODY_BYTES = 1024 * 1024
_VALUES_AT_ONCE = 5_000
"""Values of a body that are searched in the event loop. It takes a few milliseconds."""
_TOO_MANY_VALUES = (
    f"the request body has more than {MAX_CONTAINERS} objects and arrays, {MAX_NAMES} names of members, or "
    f"{MAX_VALUES} values"
)


class JsonBodyCodec:
    """Parses and edits bodies.

    All endpoints share one codec, so that their big bodies wait for each other.
    """

    def __init__(self) -> None:
        self._big = asyncio.Lock()

    async def parse(self, body: bytes) -> dict[str, Any]:
        """Return the JSON object of a request body. Raises `ClientError` invalid_json or invalid_request."""
        if len(body) <= BIG_BODY_BYTES and not any(may_be_beyond_bounds(body)):
            return _parse(body)
        async with self._big:
            beyond = await _stepwise(may_be_beyond_bounds(body))
            if beyond and not await asyncio.to_thread(is_within_bounds, body):
                raise ClientError("invalid_request", _TOO_MANY_VALUES)
            members = _parse(body)
            await asyncio.sleep(0)
            return members

    async def measure(self, members: dict[str, Any], body: bytes) -> PromptSize:
        """Return the size of the prompt. A thread takes the many short steps beside the event loop."""
        if len(body) <= BIG_BODY_BYTES:
            return measured(members, body)
        return await asyncio.to_thread(measured, members, body)

    async def check_media(self, members: dict[str, Any], allowed: AllowedMedia) -> None:
        """Raise `ClientError` if the members make a backend fetch media that is not allowed."""
        search = MediaSearch(allowed, members)
        if not search.go(_VALUES_AT_ONCE):
            async with self._big:
                await asyncio.to_thread(search.go)

    async def splice(self, body: bytes, changes: dict[str, bytes | None]) -> bytes:
        """Return the body with members changed; see `json_splice.splice`."""
        if len(body) <= BIG_BODY_BYTES:
            return splice(body, changes)
        async with self._big:
            return await asyncio.to_thread(splice, body, changes)


_NAMES = {type(None): "null", bool: "true or false", list: "an array", str: "a string"}
"""Python type -> the JSON value in words. All others are numbers."""


async def _stepwise(looks: Iterator[bool]) -> bool:
    """Return True if one of the looks does. The event loop runs before each of them, and after the last."""
    found = False
    await asyncio.sleep(0)
    for look in looks:
        found = found or look
        await asyncio.sleep(0)
    return found


def _parse(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ClientError("invalid_json", f"the request body is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        message = f"the request body must be a JSON object, and it is {_NAMES.get(type(parsed), 'a number')}"
        raise ClientError("invalid_request", message)
    return parsed
