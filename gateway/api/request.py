"""A request's body before it is sent: checked, understood, and made ready for the backend.

The body is parsed once. What the gateway itself relies on is checked here, with the parameter named; the rest
is the backend's to judge and passes untouched. A `BodyShape` says what the bodies of one protocol look like.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from slotgate.gateway.api.json_splice import splice
from slotgate.gateway.api.prompt_prefix import PromptPrefix
from slotgate.gateway.http.context import TenantIdentity
from slotgate.gateway.http.errors import ClientError

__all__ = ["BodyParser", "BodyShape", "GenerationRequest", "Upgrade", "one"]

T = TypeVar("T")

BIG_BODY_BYTES = 1024 * 1024
_EXPECTED_OUTPUT_TOKENS = 256
_MOST_OUTPUT_TOKENS = 2**31 - 1
"""llama-server's limits are of 32 bits. In the rounding of an estimate far beyond, the correction by the real
count would be lost, and with it what the tenant had used before."""


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


def one(_: dict[str, Any]) -> int:
    """A request for one thing."""
    return 1


@dataclass(frozen=True, slots=True)
class BodyShape:
    """What the request bodies of one protocol look like, as far as the gateway has to know."""

    check: Callable[[dict[str, Any]], None] = lambda _: None
    """Raises `ClientError` with the name of the member that is wrong."""
    pieces: Callable[[dict[str, Any]], int] = one
    """How many prompts, inputs or documents: llama-server spreads them over its slots."""
    count_names: tuple[str, ...] = ()
    """Members that say how many answers are wanted, in the order in which llama-server takes them."""
    limit_names: tuple[str, ...] = ()
    """Members that limit the output, likewise. Empty: there is no output."""
    own_limit: str = "max_tokens"
    """The protocol's own of them: where a limit is set that the client did not give."""
    streams: bool = False
    usage_on_demand: bool = False
    """Whether the protocol has `stream_options.include_usage`."""

    prefix: Callable[[Mapping[str, Any], bytes], PromptPrefix] = lambda _, session: PromptPrefix(
        session=session
    )
    """The beginnings of the prompt, to find the backend that knows the longest of them."""
    bytes_per_token: int = 4
    """For estimates."""

    @property
    def generates(self) -> bool:
        return bool(self.limit_names)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What the gateway needs to know of a request."""

    shape: BodyShape
    model: str | None
    stream: bool
    n: int
    pieces: int
    max_tokens: int | None
    limit_name: str
    """The member that limits the output: the first of those that were given, else the protocol's own."""
    include_usage: bool
    running_usage: bool
    timings_per_token: bool

    @classmethod
    def of(cls, parsed: dict[str, Any], shape: BodyShape) -> GenerationRequest:
        """Raises `ClientError` with the name of the member that is wrong."""
        shape.check(parsed)
        options = {}
        if shape.usage_on_demand:
            options = _typed(parsed, "stream_options", dict, "an object") or {}
        return cls(
            shape=shape,
            model=_typed(parsed, "model", str, "a string"),
            stream=shape.streams and bool(_typed(parsed, "stream", bool, "true or false")),
            n=next(iter(_counts(parsed, shape.count_names, least=1).values()), 1),
            pieces=shape.pieces(parsed),
            max_tokens=_token_limit(parsed, shape),
            limit_name=next(iter(_counts(parsed, shape.limit_names)), shape.own_limit),
            include_usage=_flag(options, "include_usage"),
            running_usage=_flag(options, "continuous_usage_stats"),
            timings_per_token=bool(parsed.get("timings_per_token")),
        )

    @property
    def parts(self) -> int:
        """How many streams an answer holds."""
        return self.n * self.pieces

    def width(self, slots: int) -> int:
        """How many slots to hold, where there are so many. Pieces may wait for each other, choices not."""
        return max(self.n, min(self.parts, max(1, slots)))

    def prompt_cost(self, body_bytes: int) -> float:
        """Estimated tokens of the prompt, from the size of what came."""
        return body_bytes / self.shape.bytes_per_token

    def cost(self, body_bytes: int, tenant: TenantIdentity) -> float:
        """Estimated tokens: what the tenant's share is charged with until the real count is known."""
        prompt = self.prompt_cost(body_bytes)
        if not self.shape.generates:
            return prompt
        output = (_allowed(self.max_tokens, tenant) or _EXPECTED_OUTPUT_TOKENS) * self.parts
        return prompt + min(output, _MOST_OUTPUT_TOKENS)

    def answer_tokens(self, tenant: TenantIdentity) -> int | None:
        """How long all answers of it may become together; None: there is no limit."""
        if not self.shape.generates:
            return 0
        allowed = _allowed(self.max_tokens, tenant)
        return None if allowed is None else min(allowed, _MOST_OUTPUT_TOKENS) * self.parts

    def changes(
        self, parsed: dict[str, Any], tenant: TenantIdentity, upstream_model: str | None, upgrade: Upgrade
    ) -> dict[str, bytes | None]:
        """The members to set, or to leave out, before the body goes to the backend. Raises `ClientError`."""
        changes: dict[str, bytes | None] = {}
        if upstream_model is not None and self.model != upstream_model:
            changes["model"] = orjson.dumps(upstream_model)
        if self.shape.generates:
            changes |= _token_limits(parsed, tenant, self.shape)
            if tenant.isolate_cache and parsed.get("cache_prompt") is not False:
                changes["cache_prompt"] = b"false"
        if "id_slot" in parsed and not tenant.allow_id_slot:
            changes["id_slot"] = None
        if upgrade.usage:
            changes["stream_options"] = _with_usage(parsed.get("stream_options") or {})
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


def _typed(table: dict[str, Any], name: str, kind: type[T], wanted: str, prefix: str = "") -> T | None:
    value = table.get(name)
    if value is not None and not isinstance(value, kind):
        raise ClientError("invalid_request", f"{prefix}{name} must be {wanted}", param=f"{prefix}{name}")
    return value


def _flag(options: dict[str, Any], name: str) -> bool:
    return bool(_typed(options, name, bool, "true or false", "stream_options."))


def _with_usage(options: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps({**options, "include_usage": True})
    except orjson.JSONEncodeError as error:  # orjson reads what is nested more deeply than it writes
        message = "stream_options is nested too deeply"
        raise ClientError("invalid_request", message, param="stream_options") from error


def _token_limit(parsed: dict[str, Any], shape: BodyShape) -> int | None:
    """The client's own limit; None: none."""
    limit = next(iter(_counts(parsed, shape.limit_names).values()), -1)
    return limit if limit >= 0 else None


def _token_limits(
    parsed: dict[str, Any], tenant: TenantIdentity, shape: BodyShape
) -> dict[str, bytes | None]:
    """The members to set so that the backend holds the tenant's limit, under whatever name it was written."""
    given: dict[str, int | None] = {**_counts(parsed, shape.limit_names)} or {shape.own_limit: None}
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
