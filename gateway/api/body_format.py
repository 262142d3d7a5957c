"""The request body format of an endpoint, as far as the gateway reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slotgate.gateway.api.prompt_prefix import PromptPrefix
from slotgate.gateway.api.split import ArraySplit

__all__ = ["BodyFormat"]


def _one_piece(_: dict[str, Any]) -> int:
    return 1


def _accept(_: dict[str, Any]) -> None:
    """Check nothing. The backend judges the body."""


def _never_split(_: dict[str, Any]) -> ArraySplit | None:
    return None


def _session_only(_: Mapping[str, Any], session: bytes) -> PromptPrefix:
    """Hash no prompt. Only the session can lead to a warm backend."""
    return PromptPrefix(session=session)


@dataclass(frozen=True, slots=True)
class BodyFormat:
    check: Callable[[dict[str, Any]], None] = _accept
    """Raises `ClientError` with the name of the member that is wrong."""
    pieces: Callable[[dict[str, Any]], int] = _one_piece
    """Counts the prompts, inputs or documents in a body. llama-server spreads them over its slots."""
    split: Callable[[dict[str, Any]], ArraySplit | None] = _never_split
    """Returns the array whose elements can be asked for one at a time, or None. Not for streams."""
    count_names: tuple[str, ...] = ()
    """Members that state how many choices are wanted, in the order in which llama-server reads them."""
    limit_names: tuple[str, ...] = ()
    """Members that limit the output, in the order in which llama-server reads them. Empty: no output."""
    own_limit: str = "max_tokens"
    """The limit member that the gateway sets if the client gave none."""
    streams: bool = False
    """True if clients can ask for a stream."""
    usage_on_demand: bool = False
    """True if the protocol has `stream_options.include_usage`."""
    prefix: Callable[[Mapping[str, Any], bytes], PromptPrefix] = _session_only
    """Hashes the prompt, given the body's members and the session key."""
    chooses_fields: bool = False
    """True if `response_fields` may leave the token counts out of an answer (llama.cpp's own protocol)."""

    @property
    def generates(self) -> bool:
        return bool(self.limit_names)
