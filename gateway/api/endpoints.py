"""The table of all public paths that the gateway forwards to a backend.

An endpoint states its paths, the format of its bodies, the dialect of its streams, and how the gateway's
identity is written into a response that is not a stream. The routes, and the tests of all routes, are made
from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slotgate.gateway.api.body_format import BodyFormat
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
from slotgate.gateway.api.merge import AnswerForm
from slotgate.gateway.api.prompt_prefix import messages_prefix, text_prefix
from slotgate.gateway.api.split import split_array, split_documents
from slotgate.gateway.http.errors import ClientError, UpstreamError

__all__ = ["ENDPOINTS", "Endpoint", "count_texts"]

Json = dict[str, Any]
_LIMITS = ("n_predict", "max_completion_tokens", "max_tokens")
"""llama-server reads these names on every path but `/v1/messages`; the first one given counts."""
_COUNTS = ("n_cmpl", "n")


# -- the gateway's identity in a response that is not a stream


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


def _keep(_: Json | list[Any], __: Identity) -> None:
    """Change nothing. The response has neither id nor model."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    name: str
    paths: tuple[str, ...]
    """The public paths. The first one is also the backend's path."""
    body_format: BodyFormat
    dialect: type[Dialect] = Dialect
    id_prefix: str = ""
    """The prefix of the ids that its answers get; empty: they keep their own, if they have one."""
    takes_slot: bool = True
    """False: llama-server answers without a slot, so the request does not queue."""
    multipart: bool = False
    """True if the body is a form and not JSON."""
    numbered: bool = True
    """True if llama-server obeys `id_slot` in the body. Embeddings ignore it, and it is lost on the way from
    `/v1/messages` to a chat inside llama-server."""
    stamp: Callable[[Json | list[Any], Identity], None] = _stamp_model
    """Writes the gateway's identity into a response that is not a stream."""

    @property
    def upstream_path(self) -> str:
        return self.paths[0]


# -- checks


def _check_messages(members: Json) -> None:
    messages = members.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ClientError(
            "invalid_request", "messages must be a list of at least one message", param="messages"
        )
    for position, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            where = f"messages[{position}]"
            raise ClientError("invalid_request", f"{where} must be an object with a role", param=where)


def _require(name: str) -> Callable[[Json], None]:
    def check(members: Json) -> None:
        if members.get(name) is None:
            raise ClientError("invalid_request", f"{name} is missing", param=name)

    return check


# -- counts of prompts, inputs and documents


def count_texts(given: object, param: str) -> int:
    """Return the number of texts in a parameter.

    A string is one text. So is a list of token numbers, with or without strings between them. Raises
    `ClientError` for other values and for empty ones.
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


def _prompts(members: Json) -> int:
    """Return the number of prompts. A prompt may be empty. An object is one prompt with pictures."""
    prompt = members.get("prompt")
    return 1 if prompt in ("", []) or isinstance(prompt, dict) else count_texts(prompt, "prompt")


def _inputs(members: Json) -> int:
    return count_texts(members.get("input"), "input")


def _native_inputs(members: Json) -> int:
    """llama-server reads `input`, and only without it `content`."""
    name = "content" if members.get("input") is None else "input"
    return count_texts(members.get(name), name)


def _documents(members: Json) -> int:
    """llama-server reads `documents`, and only without it `texts`."""
    name = "texts" if members.get("documents") is None and "texts" in members else "documents"
    documents = members.get(name)
    if not isinstance(documents, list) or not documents:
        raise ClientError("invalid_request", f"{name} must be a list, and not empty", param=name)
    return len(documents)


_LIST = AnswerForm()
_EMBEDS = BodyFormat(pieces=_inputs, split=split_array(AnswerForm("data"), "input"))

ENDPOINTS = (
    Endpoint(
        "chat",
        ("/v1/chat/completions", "/chat/completions"),
        BodyFormat(
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
        BodyFormat(
            pieces=_prompts,
            split=split_array(AnswerForm("choices"), "prompt"),
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
        BodyFormat(
            check=_require("input"),
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
        BodyFormat(check=_check_messages, prefix=messages_prefix, limit_names=("max_tokens",), streams=True),
        MessagesDialect,
        id_prefix="msg_",
        numbered=False,
        stamp=_stamp_message,
    ),
    Endpoint(
        "count_tokens",
        ("/v1/messages/count_tokens",),
        BodyFormat(check=_check_messages),
        takes_slot=False,
        stamp=_keep,
    ),
    Endpoint(
        "native",
        ("/completion",),
        BodyFormat(
            pieces=_prompts,
            split=split_array(_LIST, "prompt"),
            prefix=text_prefix,
            count_names=_COUNTS,
            limit_names=_LIMITS,
            own_limit="n_predict",
            streams=True,
            chooses_fields=True,
        ),
        NativeDialect,
    ),
    Endpoint(
        "infill",
        ("/infill",),
        BodyFormat(
            prefix=text_prefix,
            count_names=_COUNTS,
            limit_names=_LIMITS,
            own_limit="n_predict",
            streams=True,
            chooses_fields=True,
        ),
        NativeDialect,
    ),
    Endpoint("embeddings", ("/v1/embeddings", "/embeddings"), _EMBEDS, numbered=False),
    Endpoint(
        "embedding",
        ("/embedding",),
        BodyFormat(pieces=_native_inputs, split=split_array(_LIST, "input", "content")),
        numbered=False,
    ),
    Endpoint(
        "rerank",
        ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking"),
        BodyFormat(check=_require("query"), pieces=_documents, split=split_documents),
        numbered=False,
    ),
    Endpoint(
        "tokenize", ("/tokenize",), BodyFormat(check=_require("content")), takes_slot=False, stamp=_keep
    ),
    Endpoint(
        "detokenize", ("/detokenize",), BodyFormat(check=_require("tokens")), takes_slot=False, stamp=_keep
    ),
    Endpoint(
        "apply_template",
        ("/apply-template",),
        BodyFormat(check=_check_messages),
        takes_slot=False,
        stamp=_keep,
    ),
    Endpoint(
        "transcriptions",
        ("/v1/audio/transcriptions",),
        BodyFormat(limit_names=("max_tokens",), streams=True),
        TranscriptionDialect,
        multipart=True,
        numbered=False,
    ),
)
