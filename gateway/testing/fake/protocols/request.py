"""What a request asks: its door, its prompts, and whether llama-server would refuse it, in its own words.

The order of the checks is the program's, because it decides which error a client sees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import orjson

from slotgate.gateway.testing.fake.model.tokenizer import detokenized
from slotgate.gateway.testing.fake.net.wire import Json, Problem
from slotgate.gateway.testing.fake.script.scene import Machine

__all__ = ["DOORS", "Asked", "Door", "asked", "conversation"]


class Door(Enum):
    """The kinds of paths; each has its own form of question and answer."""

    CHAT = "chat"
    TEXT = "text"
    NATIVE = "native"
    INFILL = "infill"
    RESPONSES = "responses"
    MESSAGES = "messages"
    EMBEDDINGS = "embeddings"
    NATIVE_EMBEDDINGS = "native embeddings"
    RERANK = "rerank"
    SPEECH = "speech"
    COUNT = "count"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    TEMPLATE = "template"

    @property
    def generates(self) -> bool:
        return self in _GENERATING

    @property
    def takes_slot(self) -> bool:
        return self.generates or self in (Door.EMBEDDINGS, Door.NATIVE_EMBEDDINGS, Door.RERANK)


_GENERATING: Final = frozenset(
    {Door.CHAT, Door.TEXT, Door.NATIVE, Door.INFILL, Door.RESPONSES, Door.MESSAGES, Door.SPEECH}
)

DOORS: Final[dict[str, Door]] = {
    "/v1/chat/completions": Door.CHAT,
    "/chat/completions": Door.CHAT,
    "/v1/completions": Door.TEXT,
    "/completion": Door.NATIVE,
    "/completions": Door.NATIVE,
    "/infill": Door.INFILL,
    "/v1/responses": Door.RESPONSES,
    "/responses": Door.RESPONSES,
    "/v1/messages": Door.MESSAGES,
    "/v1/messages/count_tokens": Door.COUNT,
    "/v1/embeddings": Door.EMBEDDINGS,
    "/embeddings": Door.NATIVE_EMBEDDINGS,
    "/embedding": Door.NATIVE_EMBEDDINGS,
    "/v1/rerank": Door.RERANK,
    "/rerank": Door.RERANK,
    "/v1/reranking": Door.RERANK,
    "/reranking": Door.RERANK,
    "/v1/audio/transcriptions": Door.SPEECH,
    "/tokenize": Door.TOKENIZE,
    "/detokenize": Door.DETOKENIZE,
    "/apply-template": Door.TEMPLATE,
}
_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")


@dataclass(frozen=True, slots=True)
class Asked:
    door: Door
    path: str
    body: Json
    prompts: tuple[str, ...]
    """One for each choice, prompt, input or document: each takes a slot."""
    said: str
    """The last that a user said."""

    @property
    def stream(self) -> bool:
        return self.door.generates and bool(self.body.get("stream"))

    @property
    def limit(self) -> int | None:
        """The most tokens to say, if the request sets a limit."""
        limits = (self.body.get(name) for name in _LIMITS)
        return next((limit for limit in limits if isinstance(limit, int) and limit >= 0), None)

    @property
    def model(self) -> str | None:
        name = self.body.get("model")
        return name if isinstance(name, str) else None

    @property
    def arranged(self) -> bool:
        """Whether the prompts came as a list, which is then answered as one."""
        return any(isinstance(self.body.get(name), list) for name in ("prompt", "input", "content"))


def asked(path: str, content: bytes, machine: Machine) -> Asked:
    """Raises `Problem` where llama-server refuses."""
    door = DOORS[path]
    _refuse_what_is_not_served(door, machine)
    if door is Door.SPEECH:
        return Asked(door, path, _form_fields(content), ("audio",), "")
    body = _document(content)
    prompts = _READERS[door](body)
    if door is Door.CHAT:
        prompts *= _choices(body, machine)
    _refuse_bad_numbers(door, body)
    return Asked(door, path, body, prompts, _last_said(body) or prompts[0] if prompts else "")


def conversation(messages: list[Json]) -> str:
    """The prompt of a conversation, by the ChatML template."""
    told = "".join(
        f"<|im_start|>{message.get('role', 'user')}\n{_text_of(message.get('content'))}<|im_end|>\n"
        for message in messages
    )
    return f"{told}<|im_start|>assistant\n"


# -- refusals


def _refuse_what_is_not_served(door: Door, machine: Machine) -> None:
    if door in (Door.EMBEDDINGS, Door.NATIVE_EMBEDDINGS) and not machine.embeddings:
        raise _unsupported("This server does not support embeddings. Start it with `--embeddings`")
    if door is Door.RERANK and not machine.rerank:
        raise _unsupported("This server does not support reranking. Start it with `--reranking`")
    if door is Door.SPEECH and not machine.audio:
        raise _unsupported("The current model does not support audio input.")
    if door is Door.INFILL and not machine.infill:
        raise _unsupported("Infill is not supported by this model")


def _unsupported(message: str) -> Problem:
    return Problem(501, message, "not_supported_error")


def _invalid(message: str) -> Problem:
    return Problem(400, message, "invalid_request_error")


def _failed(message: str) -> Problem:
    return Problem(500, message, "server_error")


def _document(content: bytes) -> Json:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        what = f"line {error.lineno}, column {error.colno}: syntax error while parsing value"
        if not content:
            what = "line 1, column 1: attempting to parse an empty input"
        raise _failed(f"[json.exception.parse_error.101] parse error at {what}") from error
    if not isinstance(body, dict):
        raise _failed("[json.exception.type_error.305] cannot use operator[] with a string argument")
    return body


def _choices(body: Json, machine: Machine) -> int:
    n = body.get("n", 1)
    if not isinstance(n, int) or not 1 <= n <= machine.slots:
        raise _invalid(f"Field 'n': Value must be between 1 <= value <= {machine.slots}, but got {n}")
    return n


def _refuse_bad_numbers(door: Door, body: Json) -> None:
    if not door.generates:
        return
    for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "n_predict"):
        value = body.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            kind = {str: "string", bool: "boolean", list: "array", dict: "object"}.get(type(value), "null")
            what = f"[json.exception.type_error.302] type must be number, but is {kind}"
            raise _invalid(f"Field '{name}': {what}")


# -- prompts


def _messages(body: Json, refused: Callable[[str], Problem] = _invalid) -> list[Json]:
    if "messages" not in body:
        raise refused("'messages' is required")
    messages = body["messages"]
    if not isinstance(messages, list):
        raise refused("Expected 'messages' to be an array")
    return [message for message in messages if isinstance(message, dict)]


def _chat(body: Json) -> tuple[str, ...]:
    return (conversation(_messages(body)),)


def _anthropic(body: Json) -> tuple[str, ...]:
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    return (conversation([*system, *_messages(body, _failed)]),)


def _responses(body: Json) -> tuple[str, ...]:
    if "input" not in body:
        raise _invalid("'input' is required")
    given = body["input"]
    items = given if isinstance(given, list) else [{"role": "user", "content": given}]
    system = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    return (conversation([*system, *(item for item in items if isinstance(item, dict))]),)


def _prompt(body: Json) -> tuple[str, ...]:
    if "prompt" not in body:
        raise _invalid("[json.exception.out_of_range.403] key 'prompt' not found")
    return _several(body["prompt"])


def _infill(body: Json) -> tuple[str, ...]:
    for name in ("input_suffix", "input_prefix"):
        if name not in body:
            raise _failed(f"[json.exception.out_of_range.403] key '{name}' not found")
    return (f"<|fim_prefix|>{body['input_prefix']}<|fim_suffix|>{body['input_suffix']}<|fim_middle|>",)


def _inputs(body: Json) -> tuple[str, ...]:
    given = body.get("input", body.get("content"))
    if given is None:
        raise _invalid('"input" or "content" must be provided')
    if given in ([], ""):
        raise _failed('"prompt" must not be empty')
    return _several(given)


def _documents(body: Json) -> tuple[str, ...]:
    if not isinstance(body.get("query"), str):
        raise _invalid('"query" must be provided')
    documents = body.get("documents", body.get("texts"))
    if not isinstance(documents, list) or not documents:
        raise _invalid('"documents" must be a non-empty string array')
    return tuple(f"{body['query']}{document}" for document in documents)


def _content(body: Json) -> tuple[str, ...]:
    content = body.get("content", "")
    return (content if isinstance(content, str) else "",)


def _tokens(body: Json) -> tuple[str, ...]:
    tokens = body.get("tokens", [])
    return (detokenized([token for token in tokens if isinstance(token, int)]),)


_READERS: Final[dict[Door, Callable[[Json], tuple[str, ...]]]] = {
    Door.CHAT: _chat,
    Door.TEXT: _prompt,
    Door.NATIVE: _prompt,
    Door.INFILL: _infill,
    Door.RESPONSES: _responses,
    Door.MESSAGES: _anthropic,
    Door.COUNT: _anthropic,
    Door.EMBEDDINGS: _inputs,
    Door.NATIVE_EMBEDDINGS: _inputs,
    Door.RERANK: _documents,
    Door.TOKENIZE: _content,
    Door.DETOKENIZE: _tokens,
    Door.TEMPLATE: _chat,
}


def _several(given: object) -> tuple[str, ...]:
    """One text, one list of tokens, or a list of either."""
    if not isinstance(given, list):
        return (str(given),)
    if given and all(isinstance(item, int) for item in given):
        return (detokenized(given),)
    return tuple(detokenized(item) if isinstance(item, list) else str(item) for item in given)


def _last_said(body: Json) -> str:
    given = body.get("messages", body.get("input"))
    if not isinstance(given, list):
        return given if isinstance(given, str) else ""
    said = [item for item in given if isinstance(item, dict) and item.get("role", "user") == "user"]
    return _text_of(said[-1].get("content")) if said else ""


def _text_of(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _form_fields(content: bytes) -> Json:
    """The short fields of a form, as far as a script may want to look at them."""
    fields: Json = {}
    for part in content.split(b"\r\n--"):
        head, separator, value = part.partition(b"\r\n\r\n")
        if separator and b'name="' in head and b"filename=" not in head:
            name = head.split(b'name="', 1)[1].partition(b'"')[0].decode("utf-8", "replace")
            text = value.decode("utf-8", "replace")
            fields[name] = {"true": True, "false": False}.get(text, text)
    return fields
