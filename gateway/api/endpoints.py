"""The table of what the gateway serves in front of a backend: every public path, in one place.

An endpoint says where a request goes, what its body looks like, in which dialect it streams, and how a whole
answer is put under the gateway's name. The routes, and the tests of all routes, are made from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slotgate.gateway.api.chunks import Identity
from slotgate.gateway.api.dialects import (
    ChatDialect,
    Dialect,
    MessagesDialect,
    NativeDialect,
    ResponsesDialect,
    TextDialect,
    TranscriptionDialect,
)
from slotgate.gateway.api.prompt_prefix import messages_prefix, text_prefix
from slotgate.gateway.api.request import BodyShape
from slotgate.gateway.http.errors import ClientError, UpstreamError

__all__ = ["ENDPOINTS", "Endpoint", "count_texts"]

Json = dict[str, Any]
_LIMITS = ("n_predict", "max_completion_tokens", "max_tokens")
"""llama-server takes all of these on every path but `/v1/messages`; if several are given, in this order."""
_COUNTS = ("n_cmpl", "n")
_AUDIO_BYTES_PER_TOKEN = 2000
"""16,000 samples a second of two bytes, and about sixteen tokens: a rough guess for every format."""


# -- what is rewritten in a whole answer


def _stamp_model(answer: Json | list[Any], identity: Identity) -> None:
    for part in answer if isinstance(answer, list) else [answer]:
        if isinstance(part, dict) and "model" in part:
            part["model"] = identity.model


def _stamp_all(answer: Json | list[Any], identity: Identity) -> None:
    identity.stamp(_object(answer))


def _stamp_message(answer: Json | list[Any], identity: Identity) -> None:
    _object(answer).update(id=identity.id, model=identity.model)


def _object(answer: Json | list[Any]) -> Json:
    if not isinstance(answer, dict):
        raise UpstreamError("upstream_broken", "the backend's answer is not a JSON object")
    return answer


def _leave(_: Json | list[Any], __: Identity) -> None:
    """It names nobody."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    name: str
    paths: tuple[str, ...]
    """Where clients find it; the first is what the backend is asked."""
    body: BodyShape
    dialect: type[Dialect] = Dialect
    id_prefix: str = ""
    """Of the ids that its answers get; empty: they keep their own, if any."""
    takes_slot: bool = True
    multipart: bool = False
    numbered: bool = True
    """Whether llama-server takes the number of a slot from its body: embeddings, for one, do not look at it,
    and it is lost where `/v1/messages` are made a chat."""
    stamp: Callable[[Json | list[Any], Identity], None] = _stamp_model
    """Puts a whole answer under the gateway's identity."""

    @property
    def upstream_path(self) -> str:
        return self.paths[0]


# -- what is checked


def _check_messages(parsed: Json) -> None:
    messages = parsed.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ClientError(
            "invalid_request", "messages must be a list of at least one message", param="messages"
        )
    for position, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            where = f"messages[{position}]"
            raise ClientError("invalid_request", f"{where} must be an object with a role", param=where)


def _needs(name: str) -> Callable[[Json], None]:
    def check(parsed: Json) -> None:
        if parsed.get(name) is None:
            raise ClientError("invalid_request", f"{name} is missing", param=name)

    return check


# -- what is counted


def count_texts(given: object, param: str) -> int:
    """How many texts there are: a text, a list of token numbers, or both mixed, is one.

    Raises `ClientError` for what is none of it, or empty.
    """
    if isinstance(given, str) and given:
        return 1
    if isinstance(given, list) and given:
        kinds = {type(part) for part in given}
        if int in kinds and kinds <= {int, str}:
            return 1
        if kinds <= {str, list, dict} and all(given):
            return len(given)
    message = f"{param} must be a text, a list of token numbers, or a list of such, and not empty"
    raise ClientError("invalid_request", message, param=param)


def _prompts(parsed: Json) -> int:
    """A prompt may be empty; as an object it has pictures."""
    prompt = parsed.get("prompt")
    return 1 if prompt in ("", []) or isinstance(prompt, dict) else count_texts(prompt, "prompt")


def _inputs(parsed: Json) -> int:
    return count_texts(parsed.get("input"), "input")


def _native_inputs(parsed: Json) -> int:
    name = "input" if parsed.get("content") is None and parsed.get("input") is not None else "content"
    return count_texts(parsed.get(name), name)


def _documents(parsed: Json) -> int:
    name = "documents" if parsed.get("texts") is None else "texts"
    documents = parsed.get(name)
    if not isinstance(documents, list) or not documents:
        raise ClientError("invalid_request", f"{name} must be a list, and not empty", param=name)
    return len(documents)


_EMBEDS = BodyShape(pieces=_inputs)

ENDPOINTS = (
    Endpoint(
        "chat",
        ("/v1/chat/completions", "/chat/completions"),
        BodyShape(
            check=_check_messages,
            prefix=messages_prefix,
            count_names=_COUNTS,
            limit_names=_LIMITS,
            streams=True,
            usage_on_demand=True,
        ),
        ChatDialect,
        id_prefix="chatcmpl-",
        stamp=_stamp_all,
    ),
    Endpoint(
        "completions",
        ("/v1/completions", "/completions"),
        BodyShape(
            pieces=_prompts,
            prefix=text_prefix,
            count_names=_COUNTS,
            limit_names=_LIMITS,
            streams=True,
            usage_on_demand=True,
        ),
        TextDialect,
        id_prefix="cmpl-",
        stamp=_stamp_all,
    ),
    Endpoint(
        "responses",
        ("/v1/responses",),
        BodyShape(
            check=_needs("input"),
            prefix=messages_prefix,
            count_names=_COUNTS,
            limit_names=(*_LIMITS[:2], "max_output_tokens", "max_tokens"),
            own_limit="max_output_tokens",
            streams=True,
        ),
        ResponsesDialect,
    ),
    Endpoint(
        "messages",
        ("/v1/messages",),
        BodyShape(check=_check_messages, prefix=messages_prefix, limit_names=("max_tokens",), streams=True),
        MessagesDialect,
        id_prefix="msg_",
        numbered=False,
        stamp=_stamp_message,
    ),
    Endpoint(
        "count_tokens",
        ("/v1/messages/count_tokens",),
        BodyShape(check=_check_messages),
        takes_slot=False,
        stamp=_leave,
    ),
    Endpoint(
        "native",
        ("/completion",),
        BodyShape(
            pieces=_prompts,
            prefix=text_prefix,
            count_names=_COUNTS,
            limit_names=_LIMITS,
            own_limit="n_predict",
            streams=True,
        ),
        NativeDialect,
    ),
    Endpoint(
        "infill",
        ("/infill",),
        BodyShape(
            prefix=text_prefix, count_names=_COUNTS, limit_names=_LIMITS, own_limit="n_predict", streams=True
        ),
        NativeDialect,
    ),
    Endpoint("embeddings", ("/v1/embeddings", "/embeddings"), _EMBEDS, numbered=False),
    Endpoint("embedding", ("/embedding",), BodyShape(pieces=_native_inputs), numbered=False),
    Endpoint(
        "rerank",
        ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking"),
        BodyShape(check=_needs("query"), pieces=_documents),
        numbered=False,
    ),
    Endpoint("tokenize", ("/tokenize",), BodyShape(check=_needs("content")), takes_slot=False, stamp=_leave),
    Endpoint(
        "detokenize", ("/detokenize",), BodyShape(check=_needs("tokens")), takes_slot=False, stamp=_leave
    ),
    Endpoint(
        "apply_template",
        ("/apply-template",),
        BodyShape(check=_check_messages),
        takes_slot=False,
        stamp=_leave,
    ),
    Endpoint(
        "transcriptions",
        ("/v1/audio/transcriptions",),
        BodyShape(limit_names=("max_tokens",), streams=True, bytes_per_token=_AUDIO_BYTES_PER_TOKEN),
        TranscriptionDialect,
        multipart=True,
        numbered=False,
    ),
)
