"""The parameters of a request that the gateway acts on, and the changes that it makes to the body.

Every parameter that the gateway relies on is checked here, and an error names the member that is wrong. All
other members pass untouched, and the backend judges them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from slotgate.gateway.api.body_format import BodyFormat
from slotgate.gateway.api.split import ArraySplit
from slotgate.gateway.http.context import TenantIdentity
from slotgate.gateway.http.errors import ClientError

__all__ = ["AddedOptions", "RequestParameters"]

T = TypeVar("T")

_EXPECTED_OUTPUT_TOKENS = 256
_COUNT_FIELDS = ("index", "timings", "tokens_evaluated", "tokens_predicted")
"""Members of llama.cpp's native answers that hold token counts, and that say which prompt they belong to."""
_MAX_OUTPUT_TOKENS = 2**31 - 1
"""llama-server's limits have 32 bits. An estimate far beyond that would make a tenant's account so large that
floating point rounds off its earlier usage when the estimate is corrected."""


@dataclass(frozen=True, slots=True)
class AddedOptions:
    """Options that the gateway adds to a request. What they add to the answer is taken out again."""

    usage: bool = False
    """Add `include_usage`, because the backend states its counts nowhere else."""
    timings: bool = False
    """Add `timings_per_token`, which state the usage while the answer runs."""


@dataclass(frozen=True, slots=True)
class RequestParameters:
    format: BodyFormat
    model: str | None
    stream: bool
    n: int
    """The number of choices that are wanted."""
    pieces: int
    """The number of prompts, inputs or documents."""
    max_tokens: int | None
    """The client's own output limit; None: it set no limit."""
    limit_name: str
    """The member that limits the output: the first one given, else the protocol's own."""
    include_usage: bool
    running_usage: bool
    """The client wants the usage so far in every chunk (`stream_options.continuous_usage_stats`)."""
    timings_per_token: bool
    withheld: tuple[str, ...] = ()
    """Members that the gateway asks for to count tokens, and takes out of the answer again."""
    split: ArraySplit | None = None
    """The array that is asked for piece by piece; None: the request is asked as a whole."""

    @classmethod
    def from_members(cls, members: dict[str, Any], body_format: BodyFormat) -> RequestParameters:
        """Read the parameters from a body. Raises `ClientError` with the name of the member that is wrong."""
        body_format.check(members)
        stream_options = {}
        if body_format.usage_on_demand:
            stream_options = _typed(members, "stream_options", dict, "an object") or {}
        stream = body_format.streams and bool(_typed(members, "stream", bool, "true or false"))
        pieces = body_format.pieces(members)
        return cls(
            format=body_format,
            model=_typed(members, "model", str, "a string"),
            stream=stream,
            n=next(iter(_counts(members, body_format.count_names, least=1).values()), 1),
            pieces=pieces,
            max_tokens=_token_limit(members, body_format),
            limit_name=next(iter(_counts(members, body_format.limit_names)), body_format.own_limit),
            include_usage=_flag(stream_options, "include_usage"),
            running_usage=_flag(stream_options, "continuous_usage_stats"),
            timings_per_token=bool(members.get("timings_per_token")),
            withheld=_counts_left_out(members) if body_format.chooses_fields else (),
            split=body_format.split(members) if pieces > 1 and not stream else None,
        )

    @property
    def parts(self) -> int:
        """The number of parts in the answer: one for every choice of every piece."""
        return self.n * self.pieces

    @property
    def parts_at_once(self) -> int:
        """The number of parts that the backend is asked for at once: of the whole answer, or of one piece."""
        return self.parts if self.split is None else self.n

    def width(self, slots: int) -> int:
        """Return the number of slots to hold on a backend that has `slots`, for all parts or for one piece.

        llama-server runs the choices of a request side by side, so `n` is the least. Pieces that are asked
        together, as in a stream, can run one after the other, so they take what there is.
        """
        return max(self.n, min(self.parts_at_once, max(1, slots)))

    def cost(self, prompt_tokens: float, tenant: TenantIdentity) -> float:
        """Estimate the tokens of prompt and answer. Limits reserve them until the real count is known."""
        if not self.format.generates:
            return prompt_tokens
        output = (_allowed(self.max_tokens, tenant) or _EXPECTED_OUTPUT_TOKENS) * self.parts
        return prompt_tokens + min(output, _MAX_OUTPUT_TOKENS)

    def answer_tokens(self, tenant: TenantIdentity) -> int | None:
        """Return the most tokens that the parts asked for at once can have together; None: no limit."""
        if not self.format.generates:
            return 0
        allowed = _allowed(self.max_tokens, tenant)
        return None if allowed is None else min(allowed, _MAX_OUTPUT_TOKENS) * self.parts_at_once

    def changes(
        self, members: dict[str, Any], tenant: TenantIdentity, upstream_model: str | None, added: AddedOptions
    ) -> dict[str, bytes | None]:
        """Return member name -> JSON to set in the backend's body, or None to leave the member out.

        Of a split request, the body then has what all pieces have in common. Raises `ClientError` if a member
        that must change is nested too deeply to be written.
        """
        changes: dict[str, bytes | None] = {}
        if upstream_model is not None and self.model != upstream_model:
            changes["model"] = orjson.dumps(upstream_model)
        if self.format.generates:
            changes |= _token_limits(members, tenant, self.format)
            if tenant.isolate_cache and members.get("cache_prompt") is not False:
                changes["cache_prompt"] = b"false"
        if "id_slot" in members and not tenant.allow_id_slot:
            changes["id_slot"] = None
        if self.withheld:
            fields = [*members["response_fields"], *self.withheld]
            changes["response_fields"] = _dumped(fields, "response_fields")
        if added.usage:
            changes["stream_options"] = _with_usage(members.get("stream_options") or {})
        if added.timings:
            changes["timings_per_token"] = b"true"
        if self.split is not None:
            changes |= dict.fromkeys(self.split.own_members)
        return changes


def _typed(members: dict[str, Any], name: str, kind: type[T], wanted: str, prefix: str = "") -> T | None:
    value = members.get(name)
    if value is not None and not isinstance(value, kind):
        raise ClientError("invalid_request", f"{prefix}{name} must be {wanted}", param=f"{prefix}{name}")
    return value


def _flag(options: dict[str, Any], name: str) -> bool:
    return bool(_typed(options, name, bool, "true or false", "stream_options."))


def _counts_left_out(members: dict[str, Any]) -> tuple[str, ...]:
    """Return the members with token counts that `response_fields` leaves out of the answer."""
    chosen = members.get("response_fields")
    if not isinstance(chosen, list) or not chosen:
        return ()
    return tuple(name for name in _COUNT_FIELDS if name not in chosen)


def _with_usage(options: dict[str, Any]) -> bytes:
    return _dumped({**options, "include_usage": True}, "stream_options")


def _dumped(value: object, name: str) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:  # orjson reads deeper nesting than it writes
        raise ClientError("invalid_request", f"{name} is nested too deeply", param=name) from error


def _token_limit(members: dict[str, Any], body_format: BodyFormat) -> int | None:
    """Return the client's own limit, or None if it set none or a negative one."""
    limit = next(iter(_counts(members, body_format.limit_names).values()), -1)
    return limit if limit >= 0 else None


def _token_limits(
    members: dict[str, Any], tenant: TenantIdentity, body_format: BodyFormat
) -> dict[str, bytes | None]:
    """Return the limit members to set so that the tenant's limit holds.

    Every limit that the client gave is lowered, because llama-server reads several names.
    """
    given: dict[str, int | None] = {**_counts(members, body_format.limit_names)} or {
        body_format.own_limit: None
    }
    allowed = {name: _allowed(limit, tenant) for name, limit in given.items()}
    return {
        name: b"%d" % limit for name, limit in allowed.items() if limit is not None and limit != given[name]
    }


def _allowed(wanted: int | None, tenant: TenantIdentity) -> int | None:
    """Return the limit that applies if the client wants this one.

    llama-server reads a negative limit as none.
    """
    limit = tenant.max_tokens_default if wanted is None or wanted < 0 else wanted
    ceiling = tenant.max_tokens_limit
    if ceiling is None:
        return limit
    return ceiling if limit is None else min(limit, ceiling)


def _counts(members: dict[str, Any], names: tuple[str, ...], *, least: int | None = None) -> dict[str, int]:
    """Return the whole numbers given under these names, in the order of the names.

    Raises `ClientError` if one is no whole number or less than `least`.
    """
    given = {name: members[name] for name in names if members.get(name) is not None}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise ClientError("invalid_request", f"{name} must be a whole number", param=name)
        if least is not None and value < least:
            raise ClientError("invalid_request", f"{name} must be at least {least}", param=name)
    return {name: int(value) for name, value in given.items()}
