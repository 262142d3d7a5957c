"""Reads requests, and refuses those that llama-server refuses, with the same texts.

The order of the checks is llama-server's, because it decides which error a client gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import orjson

from slotgate.gateway.testing.fake.model.tokenizer import detokenize
from slotgate.gateway.testing.fake.net.wire import Json, LlamaRefusal
from slotgate.gateway.testing.fake.protocols.endpoints import LLAMA_ENDPOINTS, LlamaEndpoint
from slotgate.gateway.testing.fake.script.scene import Machine

__all__ = ["LlamaRequest", "conversation", "parse_request"]


_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")


@dataclass(frozen=True, slots=True)
class LlamaRequest:
    """A request for an endpoint of llama-server, parsed."""

    endpoint: LlamaEndpoint
    path: str
    body: Json
    prompts: tuple[str, ...]
    """The prompts, one for each choice, prompt, input or document. Each takes a slot."""
    last_user_text: str
    """The text of the last user message, or the first prompt."""

    @property
    def stream(self) -> bool:
        return self.endpoint.generates and bool(self.body.get("stream"))

    @property
    def limit(self) -> int | None:
        """The largest number of tokens to generate, or None if the request sets no limit."""
        limits = (self.body.get(name) for name in _LIMITS)
        return next((limit for limit in limits if isinstance(limit, int) and limit >= 0), None)

    @property
    def model(self) -> str | None:
        name = self.body.get("model")
        return name if isinstance(name, str) else None


def parse_request(path: str, content: bytes, machine: Machine) -> LlamaRequest:
    """Parse a request. Raises `LlamaRefusal` if llama-server would refuse it."""
    endpoint = LLAMA_ENDPOINTS[path]
    _refuse_what_is_not_served(endpoint, machine)
    if endpoint is LlamaEndpoint.SPEECH:
        return LlamaRequest(endpoint, path, _form_fields(content), ("audio",), "")
    body = _document(content)
    prompts = _READERS[endpoint](body)
    if endpoint is LlamaEndpoint.CHAT:
        prompts *= _choices(body, machine)
    _refuse_bad_numbers(endpoint, body)
    return LlamaRequest(endpoint, path, body, prompts, _last_user_text(body) or prompts[0] if prompts else "")


def conversation(messages: list[Json]) -> str:
    """Return the prompt of a conversation in the ChatML template."""
    turns = "".join(
        f"<|im_start|>{message.get('role', 'user')}\n{_text_of(message.get('content'))}<|im_end|>\n"
        for message in messages
    )
    return f"{turns}<|im_start|>assistant\n"


# -- refusals


def _refuse_what_is_not_served(endpoint: LlamaEndpoint, machine: Machine) -> None:
    if endpoint in (LlamaEndpoint.EMBEDDINGS, LlamaEndpoint.NATIVE_EMBEDDINGS) and not machine.embeddings:
        raise _unsupported("This server does not support embeddings. Start it with `--embeddings`")
    if endpoint is LlamaEndpoint.RERANK and not machine.rerank:
        raise _unsupported("This server does not support reranking. Start it with `--reranking`")
    if endpoint is LlamaEndpoint.SPEECH and not machine.audio:
        raise _unsupported("The current model does not support audio input.")
    if endpoint is LlamaEndpoint.INFILL and not machine.infill:
        raise _unsupported("Infill is not supported by this model")


def _unsupported(message: str) -> LlamaRefusal:
    return LlamaRefusal(501, message, "not_supported_error")


def _invalid(message: str) -> LlamaRefusal:
    return LlamaRefusal(400, message, "invalid_request_error")


def _failed(message: str) -> LlamaRefusal:
    return LlamaRefusal(500, message, "server_error")


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


def _refuse_bad_numbers(endpoint: LlamaEndpoint, body: Json) -> None:
    if not endpoint.generates:
        return
    for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "n_predict"):
        value = body.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            kind = {str: "string", bool: "boolean", list: "array", dict: "object"}.get(type(value), "null")
            what = f"[json.exception.type_error.302] type must be number, but is {kind}"
            raise _invalid(f"Field '{name}': {what}")


# -- prompts


def _messages(body: Json, refused: Callable[[str], LlamaRefusal] = _invalid) -> list[Json]:
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
    return (detokenize([token for token in tokens if isinstance(token, int)]),)


_READERS: Final[dict[LlamaEndpoint, Callable[[Json], tuple[str, ...]]]] = {
    LlamaEndpoint.CHAT: _chat,
    LlamaEndpoint.TEXT: _prompt,
    LlamaEndpoint.NATIVE: _prompt,
    LlamaEndpoint.INFILL: _infill,
    LlamaEndpoint.RESPONSES: _responses,
    LlamaEndpoint.MESSAGES: _anthropic,
    LlamaEndpoint.COUNT: _anthropic,
    LlamaEndpoint.EMBEDDINGS: _inputs,
    LlamaEndpoint.NATIVE_EMBEDDINGS: _inputs,
    LlamaEndpoint.RERANK: _documents,
    LlamaEndpoint.TOKENIZE: _content,
    LlamaEndpoint.DETOKENIZE: _tokens,
    LlamaEndpoint.TEMPLATE: _chat,
}


def _several(given: object) -> tuple[str, ...]:
    """Return the prompts of a text, of a list of tokens, or of a list of either."""
    if not isinstance(given, list):
        return (str(given),)
    if given and all(isinstance(item, int) for item in given):
        return (detokenize(given),)
    return tuple(detokenize(item) if isinstance(item, list) else str(item) for item in given)


def _last_user_text(body: Json) -> str:
    given = body.get("messages", body.get("input"))
    if not isinstance(given, list):
        return given if isinstance(given, str) else ""
    last_user_text = [item for item in given if isinstance(item, dict) and item.get("role", "user") == "user"]
    return _text_of(last_user_text[-1].get("content")) if last_user_text else ""


def _text_of(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _form_fields(content: bytes) -> Json:
    """Return the fields of a form without its files."""
    fields: Json = {}
    for part in content.split(b"\r\n--"):
        head, separator, value = part.partition(b"\r\n\r\n")
        if separator and b'name="' in head and b"filename=" not in head:
            name = head.split(b'name="', 1)[1].partition(b'"')[0].decode("utf-8", "replace")
            text = value.decode("utf-8", "replace")
            fields[name] = {"true": True, "false": False}.get(text, text)
    return fields
