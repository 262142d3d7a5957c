"""OpenAI's chat and text completions: chunks with `choices`, ended by `[DONE]`."""

from __future__ import annotations

from typing import Any, ClassVar

from slotgate.gateway.api.chunks import (
    KEPT_APART,
    Chunk,
    Identity,
    data_frame,
    encode,
    has_output,
    only_reasoning,
    plain_delta,
    stamp_and_split,
)
from slotgate.gateway.api.dialects.dialect import Dialect, FrameOptions
from slotgate.gateway.api.token_usage import TokenUsage

__all__ = ["ChatDialect", "ChoicesDialect", "TextDialect"]


class ChoicesDialect(Dialect):
    done = b"[DONE]"
    object_name: ClassVar[str]

    def __init__(self, identity: Identity, token_usage: TokenUsage, options: FrameOptions) -> None:
        super().__init__(identity, token_usage, options)
        self._begun = False
        self._timings: object = None
        self._held_finish: Chunk | None = None

    def identity_members(self) -> dict[bytes, bytes]:
        stamped: Chunk = {}
        self._identity.stamp(stamped)
        return {name.encode(): encode(value) for name, value in stamped.items()}

    def take(self, chunk: Chunk) -> list[Chunk]:
        options = self.options
        chunks = self._withheld(chunk) if options.withhold_usage else [chunk]
        parts: list[Chunk] = []
        for released in chunks:
            if options.strip_timings and released.get("choices") and not _finishes(released):
                released.pop("timings", None)
            self._timings = released.get("timings")
            parts += self._with_running_usage(released)
        return parts

    def flush(self) -> list[Chunk]:
        held, self._held_finish = self._held_finish, None
        return self._with_running_usage(held) if held is not None else []

    def uses_templates(self) -> bool:
        return not self.options.running_usage

    def _with_running_usage(self, chunk: Chunk) -> list[Chunk]:
        """Return the rewritten chunk, with the usage so far if the client wants it."""
        parts = self.rewritten(chunk)
        for part in parts:
            if self.options.running_usage and self._begun and part.get("usage") is None:
                part["usage"] = self._token_usage.running_usage()
            self._begun = True
        return parts

    def _withheld(self, chunk: Chunk) -> list[Chunk]:
        """Hold the finish chunk until the usage chunk has come, and put the timings of the latter into it.

        llama-server moves `timings` from the finish chunk to the usage chunk if it is asked for one.
        """
        held = self._held_finish
        if _finishes(chunk):
            self._held_finish = chunk
        elif chunk.get("choices") or chunk.get("usage") is None:
            return [chunk]
        else:
            self._held_finish = None
            if held is not None and "timings" in chunk:
                held.setdefault("timings", chunk["timings"])
        return [held] if held is not None else []

    def _keepalive(self, choice: Chunk) -> bytes:
        chunk = self._empty_chunk(choice)
        if self.options.running_usage:
            chunk["usage"] = self._token_usage.running_usage()
        if self._timings is not None:
            chunk["timings"] = self._timings
        return data_frame(chunk)

    def _empty_chunk(self, choice: Chunk) -> Chunk:
        return {
            "choices": [choice],
            "created": self._identity.created,
            "id": self._identity.id,
            "model": self._identity.model,
            "object": self.object_name,
        }


class ChatDialect(ChoicesDialect):
    object_name = "chat.completion.chunk"

    def __init__(self, identity: Identity, token_usage: TokenUsage, options: FrameOptions) -> None:
        super().__init__(identity, token_usage, options)
        self._role_expected = False
        """True while the upstream's role chunk, which the gateway has sent already, is still to come."""

    def has_output(self, chunk: Chunk) -> bool:
        return has_output(chunk)

    def is_reasoning(self, chunk: Chunk) -> bool:
        return only_reasoning(chunk)

    def plain(self, chunk: Chunk) -> tuple[str, str] | None:
        return plain_delta(chunk)

    def rewritten(self, chunk: Chunk) -> list[Chunk]:
        return stamp_and_split(chunk, self._identity)

    def take(self, chunk: Chunk) -> list[Chunk]:
        if self._role_expected and not has_output(chunk) and _is_role_only(chunk):
            self._role_expected = False
            return []
        return super().take(chunk)

    def keepalive_chunk(self, *, begun: bool) -> bytes:
        if begun:
            return b""
        role = b""
        if not self._begun:
            role = data_frame(self._empty_chunk(_delta({"role": "assistant", "content": None})))
            self._begun = self._role_expected = True
        return role + self._keepalive(_delta({}))


class TextDialect(ChoicesDialect):
    object_name = "text_completion"

    def has_output(self, chunk: Chunk) -> bool:
        return any(choice.get("text") for choice in _choices(chunk))

    def plain(self, chunk: Chunk) -> tuple[str, str] | None:
        choices = _choices(chunk)
        if len(choices) != 1 or any(chunk.get(name) is not None for name in KEPT_APART):
            return None
        [choice] = choices
        others = (value for name, value in choice.items() if name not in ("index", "text"))
        text = choice.get("text")
        if choice.get("index") != 0 or any(value is not None for value in others):
            return None
        return ("text", text) if isinstance(text, str) and text else None

    def rewritten(self, chunk: Chunk) -> list[Chunk]:
        self._identity.stamp(chunk)
        return [chunk]

    def keepalive_chunk(self, *, begun: bool) -> bytes:
        if begun:
            return b""
        self._begun = True
        return self._keepalive({"index": 0, "text": "", "logprobs": None, "finish_reason": None})


def _delta(delta: dict[str, Any]) -> Chunk:
    return {"index": 0, "delta": delta, "finish_reason": None}


def _choices(chunk: Chunk) -> list[dict[str, Any]]:
    choices = chunk.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _finishes(chunk: Chunk) -> bool:
    return any(choice.get("finish_reason") for choice in _choices(chunk))


def _is_role_only(chunk: Chunk) -> bool:
    """Return True if the chunk states the role in choice 0, and nothing else."""
    choices = _choices(chunk)
    if len(choices) != 1 or choices[0].get("index", 0) != 0:
        return False
    if _finishes(chunk) or any(chunk.get(name) is not None for name in KEPT_APART):
        return False
    delta = choices[0].get("delta")
    return (
        isinstance(delta, dict)
        and "role" in delta
        and not any(value for name, value in delta.items() if name != "role")
    )
