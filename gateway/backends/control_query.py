"""Queries of a backend's own pages (/health, /props, /slots, /v1/models), each answered in time or failed.

This module sends nothing on the connections that requests use.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson

from slotgate.gateway.backends.backend import Backend

__all__ = ["OutdatedAnswerError", "json_object", "json_of", "query"]

ASK_S = 5.0
"""The time limit for a whole answer. Without it a body that comes byte by byte would hold up the caller."""


class OutdatedAnswerError(Exception):
    """The answer came from a process that has been replaced by another one."""


async def query(backend: Backend, path: str) -> httpx.Response:
    """Return a whole answer. Raises `httpx.HTTPError`, also after `ASK_S`, or `OutdatedAnswerError`."""
    asked = backend.process_changes
    try:
        async with asyncio.timeout(ASK_S):
            answer = await backend.ask(path)
    except (TimeoutError, httpx.HTTPError) as error:
        if asked != backend.process_changes:
            raise OutdatedAnswerError from error
        if isinstance(error, httpx.HTTPError):
            raise
        raise httpx.ReadTimeout(f"{path} was not answered within {ASK_S:g} s") from error
    if asked != backend.process_changes:
        raise OutdatedAnswerError
    return answer


def json_object(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of a successful answer, or an empty one."""
    content = json_of(answer)
    return content if isinstance(content, dict) else {}


def json_of(answer: httpx.Response) -> object:
    """Return the JSON of a successful answer, or None."""
    try:
        return orjson.loads(answer.content) if answer.status_code == 200 else None
    except orjson.JSONDecodeError:
        return None
