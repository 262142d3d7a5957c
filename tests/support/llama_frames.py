"""What llama-server writes, byte shape for byte shape (key order, ids, where usage and timings stand).

Copied from the wire of the build that the tests run for real (b1-7e4c0a9); a contract test there compares.
Pure functions: a request in, events or a body out.
"""

from typing import Any

import orjson

from tests.support.connection import Request
from tests.support.notation import DONE, END, chunked
from tests.support.script import Fin, Paced, Script, Write

CREATED = 1795967593
FINGERPRINT = "b1-7e4c0a9"
PROMPT_TOKENS = 31

CHAT = frozenset({"/v1/chat/completions", "/chat/completions"})
TEXT = frozenset({"/v1/completions"})
NATIVE = frozenset({"/completion", "/completions", "/infill"})
RESPONSES = frozenset({"/v1/responses"})
MESSAGES = frozenset({"/v1/messages"})
VECTORS = frozenset({"/v1/embeddings", "/embeddings", "/embedding"})
RANKING = frozenset({"/v1/rerank", "/rerank", "/v1/reranking", "/reranking"})
SPEECH = frozenset({"/v1/audio/transcriptions"})
GENERATING = CHAT | TEXT | NATIVE | RESPONSES | MESSAGES | VECTORS | RANKING | SPEECH

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: \r\nX-Accel-Buffering: no\r\n"
    b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"
)


def width(request: Request) -> int:
    """How many slots a request makes llama-server use, before the limit of those it has."""
    if request.path not in GENERATING:
        return 0
    if request.path in SPEECH:
        return 1
    body = request.json()
    listed = [body.get(name) for name in ("prompt", "input", "documents", "content")]
    counts = [len(value) for value in listed if isinstance(value, list) and request.path not in RESPONSES]
    return max([int(body.get("n") or 1), *counts])


def props(slots: int, n_ctx: int, model: str) -> dict[str, Any]:
    return {
        "default_generation_settings": {"params": {"n_predict": -1, "stream": False}, "n_ctx": n_ctx},
        "total_slots": slots,
        "model_alias": model,
        "model_ftype": "F32",
        "model_path": model,
        "modalities": {"vision": False, "audio": False},
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "is_sleeping": False,
        "build_info": FINGERPRINT,
    }


def models(n_ctx: int, model: str) -> dict[str, Any]:
    meta = {"vocab_type": 1, "n_vocab": 359, "n_ctx": n_ctx, "n_ctx_train": n_ctx, "n_embd": 32}
    entry = {"id": model, "aliases": [model], "tags": [], "object": "model", "created": CREATED}
    return {
        "models": [{"name": model, "model": model, "type": "model", "capabilities": ["completion"]}],
        "object": "list",
        "data": [{**entry, "owned_by": "llamacpp", "meta": meta}],
    }


def timings(predicted: int) -> dict[str, Any]:
    return {
        "cache_n": 30,
        "prompt_n": PROMPT_TOKENS - 30,
        "prompt_ms": 6.809,
        "prompt_per_token_ms": 6.809,
        "prompt_per_second": 146.864444118079,
        "predicted_n": predicted,
        "predicted_ms": 5.0 * predicted,
        "predicted_per_token_ms": 5.0,
        "predicted_per_second": 200.0,
    }


def usage(predicted: int) -> dict[str, Any]:
    return {
        "completion_tokens": predicted,
        "prompt_tokens": PROMPT_TOKENS,
        "total_tokens": PROMPT_TOKENS + predicted,
        "prompt_tokens_details": {"cached_tokens": 30},
    }


def data(value: object) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)


def named(value: dict[str, Any]) -> bytes:
    """An event of the Responses and Anthropic streams: its type as its name too."""
    return b"event: %b\n%b" % (value["type"].encode(), data(value))


def chat_events(texts: list[str], model: str, *, include_usage: bool) -> list[bytes]:
    tail = {
        "created": CREATED,
        "id": "chatcmpl-MaAutLNH5ODpDcJO2ttHKib93RGZ5pdI",
        "model": model,
        "system_fingerprint": FINGERPRINT,
        "object": "chat.completion.chunk",
    }

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: object) -> bytes:
        return data({"choices": [{"finish_reason": finish, "index": 0, "delta": delta}], **tail, **more})

    said = [chunk({"role": "assistant", "content": None}), *(chunk({"content": text}) for text in texts)]
    times = {"timings": timings(len(texts))}
    if not include_usage:
        return [*said, chunk({}, "length", **times), DONE]
    return [
        *said,
        chunk({}, "length"),
        data({"choices": [], **tail, "usage": usage(len(texts)), **times}),
        DONE,
    ]


def text_events(texts: list[str], model: str) -> list[bytes]:
    def chunk(text: str, finish: str | None, usage: dict[str, Any], times: dict[str, Any]) -> bytes:
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}
        middle = {"model": model, "system_fingerprint": FINGERPRINT, "object": "text_completion", **usage}
        return data({"choices": [choice], "created": CREATED, **middle, "id": "chatcmpl-Xg4CyTQk52", **times})

    last = chunk("", "length", {"usage": usage(len(texts))}, {"timings": timings(len(texts))})
    return [*(chunk(text, None, {}, {}) for text in texts), last, DONE]


def native_body(content: str, model: str, predicted: int) -> dict[str, Any]:
    return {
        "index": 0,
        "content": content,
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": model,
        "tokens_predicted": predicted,
        "tokens_evaluated": PROMPT_TOKENS,
        "generation_settings": {"n_predict": predicted, "stream": True},
        "prompt": "hi",
        "has_new_line": False,
        "truncated": False,
        "stop_type": "limit",
        "stopping_word": "",
        "tokens_cached": PROMPT_TOKENS + predicted,
        "timings": timings(predicted),
    }


def native_events(texts: list[str], model: str) -> list[bytes]:
    said = [
        {"index": 0, "content": text, "tokens": [i], "stop": False, "id_slot": -1}
        | {"tokens_predicted": i + 1, "tokens_evaluated": PROMPT_TOKENS}
        for i, text in enumerate(texts)
    ]
    return [*map(data, said), data(native_body("", model, len(texts)))]


def generation(request: Request, model: str, tokens: int, rate: float) -> Script:
    """The script that answers a request for work: `tokens` words at `rate` a second."""
    body = request.json()
    limit = body.get("max_tokens") or body.get("n_predict") or tokens
    texts = [f" w{i}" for i in range(limit)]
    if request.path in CHAT:
        asked = (body.get("stream_options") or {}).get("include_usage", False)
        events = chat_events(texts, model, include_usage=asked)
    elif request.path in TEXT:
        events = text_events(texts, model)
    else:
        events = native_events(texts, model)
    return paced(events, rate)


def paced(events: list[bytes], rate: float) -> Script:
    """A stream of given events; the last is sent together with the final chunk, as llama-server does."""
    *before, last = events
    return [
        Write(STREAM_HEAD),
        Paced(rate, len(before), before.__getitem__),
        Write(chunked(last) + END),
        Fin(),
    ]
