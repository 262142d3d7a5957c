"""A chat request before it is sent: checked, understood, and made ready for the backend.

The body is parsed once. What the gateway itself relies on is checked here, with the parameter named; the rest
is the backend's to judge and passes untouched.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from gateway.context import TenantIdentity
from gateway.errors import ClientError
from gateway.splice import splice

__all__ = ["BodyParser", "ChatRequest", "Upgrade"]

T = TypeVar("T")

BIG_BODY_BYTES = 1024 * 1024
_BYTES_PER_TOKEN = 4
_EXPECTED_OUTPUT_TOKENS = 256
_LIMIT_NAMES = ("n_predict", "max_completion_tokens", "max_tokens")
_COUNT_NAMES = ("n_cmpl", "n")
"""In the order in which llama-server takes them; its native names count on this path too."""


class BodyParser:
    """Big bodies are parsed one at a time, so that a burst of them cannot hold the loop for long."""

    def __init__(self) -> None:
        self._big = asyncio.Lock()

    async def parse(self, body: bytes) -> dict[str, Any]:
        """The JSON object of a request body. Raises `ClientError` invalid_json or invalid_request."""
        if len(body) <= BIG_BODY_BYTES:
            return _parse(body)
        async with self._big:
            await asyncio.sleep(0)
            return _parse(body)

    async def splice(self, body: bytes, changes: dict[str, bytes | None]) -> bytes:
        if len(body) <= BIG_BODY_BYTES:
            return splice(body, changes)
        async with self._big:
            return await asyncio.to_thread(splice, body, changes)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What the gateway asks for beyond what the client asked, to be taken out of the answer again."""

    usage: bool = False
    """`include_usage`, because this backend states its counts nowhere else."""
    timings: bool = False
    """`timings_per_token`, to know the running usage."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What the gateway needs to know of a chat request."""

    model: str | None
    stream: bool
    n: int
    max_tokens: int | None
    include_usage: bool
    running_usage: bool
    timings_per_token: bool

    @classmethod
    def of(cls, parsed: dict[str, Any]) -> ChatRequest:
        """Raises `ClientError` with the name of the member that is wrong."""
        _check_messages(parsed.get("messages"))
        options = _typed(parsed, "stream_options", dict, "an object") or {}
        return cls(
            model=_typed(parsed, "model", str, "a string"),
            stream=_typed(parsed, "stream", bool, "true or false") or False,
            n=next(iter(_counts(parsed, _COUNT_NAMES, least=1).values()), 1),
            max_tokens=_token_limit(parsed),
            include_usage=_typed(options, "include_usage", bool, "true or false", "stream_options.") or False,
            running_usage=_typed(options, "continuous_usage_stats", bool, "true or false", "stream_options.")
            or False,
            timings_per_token=bool(parsed.get("timings_per_token")),
        )

    def cost(self, body_bytes: int, tenant: TenantIdentity) -> float:
        """Estimated tokens: what the tenant's share is charged with until the real count is known."""
        output = _allowed(self.max_tokens, tenant) or _EXPECTED_OUTPUT_TOKENS
        return body_bytes / _BYTES_PER_TOKEN + output * self.n

    def changes(
        self, parsed: dict[str, Any], tenant: TenantIdentity, upstream_model: str | None, upgrade: Upgrade
    ) -> dict[str, bytes | None]:
        """The members to set, or to leave out, before the body goes to the backend."""
        changes: dict[str, bytes | None] = {}
        if upstream_model is not None and self.model != upstream_model:
            changes["model"] = orjson.dumps(upstream_model)
        changes |= _token_limits(parsed, tenant)
        if "id_slot" in parsed and not tenant.allow_id_slot:
            changes["id_slot"] = None
        if upgrade.usage:
            changes["stream_options"] = orjson.dumps(
                {**(parsed.get("stream_options") or {}), "include_usage": True}
            )
        if upgrade.timings:
            changes["timings_per_token"] = b"true"
        return changes


def _parse(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ClientError("invalid_json", f"the request body is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ClientError("invalid_request", "the request body must be a JSON object")
    return parsed


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list) or not messages:
        raise ClientError(
            "invalid_request", "messages must be a list of at least one message", param="messages"
        )
    for position, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            where = f"messages[{position}]"
            raise ClientError("invalid_request", f"{where} must be an object with a role", param=where)


def _typed(table: dict[str, Any], name: str, kind: type[T], wanted: str, prefix: str = "") -> T | None:
    value = table.get(name)
    if value is not None and not isinstance(value, kind):
        raise ClientError("invalid_request", f"{prefix}{name} must be {wanted}", param=f"{prefix}{name}")
    return value


def _token_limit(parsed: dict[str, Any]) -> int | None:
    """The client's own limit; None: none."""
    limit = next(iter(_counts(parsed, _LIMIT_NAMES).values()), -1)
    return limit if limit >= 0 else None


def _token_limits(parsed: dict[str, Any], tenant: TenantIdentity) -> dict[str, bytes | None]:
    """The members to set so that the backend holds the tenant's limit, under whatever name it was written."""
    given: dict[str, int | None] = {**_counts(parsed, _LIMIT_NAMES)} or {"max_tokens": None}
    allowed = {name: _allowed(limit, tenant) for name, limit in given.items()}
    return {
        name: b"%d" % limit for name, limit in allowed.items() if limit is not None and limit != given[name]
    }


def _allowed(wanted: int | None, tenant: TenantIdentity) -> int | None:
    """The limit that a request gets which wants this one. llama-server reads a negative one as none."""
    limit = tenant.max_tokens_default if wanted is None or wanted < 0 else wanted
    ceiling = tenant.max_tokens_limit
    if ceiling is None:
        return limit
    return ceiling if limit is None else min(limit, ceiling)


def _counts(table: dict[str, Any], names: tuple[str, ...], *, least: int | None = None) -> dict[str, int]:
    """The whole numbers that are given under these names, in the order of the names."""
    given = {name: table[name] for name in names if table.get(name) is not None}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise ClientError("invalid_request", f"{name} must be a whole number", param=name)
        if least is not None and value < least:
            raise ClientError("invalid_request", f"{name} must be at least {least}", param=name)
    return {name: int(value) for name, value in given.items()}
