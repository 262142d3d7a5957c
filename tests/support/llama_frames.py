"""What llama-server writes on the OpenAI and native paths, byte shape for byte shape.

Key order, ids, and where usage and timings stand are copied from the wire of the build that the tests also
run for real (b1-7e4c0a9); a test compares the two. Pure functions of the words said.
"""

from typing import Any

import orjson

from tests.support.notation import DONE

CREATED = 1795967593
FINGERPRINT = "b1-7e4c0a9"
PROMPT_TOKENS = 31
CACHED_TOKENS = 30

Json = dict[str, Any]


def data(value: object) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)


def timings(predicted: int) -> Json:
    return {
        "cache_n": CACHED_TOKENS,
        "prompt_n": PROMPT_TOKENS - CACHED_TOKENS,
        "prompt_ms": 6.809,
        "prompt_per_token_ms": 6.809,
        "prompt_per_second": 146.864444118079,
        "predicted_n": predicted,
        "predicted_ms": 5.0 * predicted,
        "predicted_per_token_ms": 5.0,
        "predicted_per_second": 200.0,
    }


def usage(predicted: int) -> Json:
    return {
        "completion_tokens": predicted,
        "prompt_tokens": PROMPT_TOKENS,
        "total_tokens": PROMPT_TOKENS + predicted,
        "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
    }


def chat_events(words: list[str], model: str, finish: str, *, include_usage: bool) -> list[bytes]:
    """Timings stand in the finish chunk, or with `include_usage` in the usage chunk behind it."""
    tail = {
        "created": CREATED,
        "id": "chatcmpl-MaAutLNH5ODpDcJO2ttHKib93RGZ5pdI",
        "model": model,
        "system_fingerprint": FINGERPRINT,
        "object": "chat.completion.chunk",
    }

    def chunk(delta: Json, finish: str | None = None, **more: object) -> bytes:
        return data({"choices": [{"finish_reason": finish, "index": 0, "delta": delta}], **tail, **more})

    said = [chunk({"role": "assistant", "content": None}), *(chunk({"content": word}) for word in words)]
    times = {"timings": timings(len(words))}
    if include_usage:
        last = data({"choices": [], **tail, "usage": usage(len(words)), **times})
        return [*said, chunk({}, finish), last, DONE]
    return [*said, chunk({}, finish, **times), DONE]


def chat_body(words: list[str], model: str, finish: str) -> Json:
    message = {"role": "assistant", "content": "".join(words)}
    return {
        "choices": [{"finish_reason": finish, "index": 0, "message": message}],
        "created": CREATED,
        "model": model,
        "system_fingerprint": FINGERPRINT,
        "object": "chat.completion",
        "usage": usage(len(words)),
        "id": "chatcmpl-QjYhyGqGMcGjfHSHBw9eQYLtDPN3wWMT",
        "timings": timings(len(words)),
    }


def _text_chunk(text: str, model: str, finish: str | None, usage: Json, times: Json) -> Json:
    return {
        "choices": [{"text": text, "index": 0, "logprobs": None, "finish_reason": finish}],
        "created": CREATED,
        "model": model,
        "system_fingerprint": FINGERPRINT,
        "object": "text_completion",
        **usage,
        "id": "chatcmpl-Xg4CyTQk52FSjHTRozew9e8QN4ZWo0Jd",
        **times,
    }


def text_body(words: list[str], model: str, finish: str, text: str | None = None) -> Json:
    text = "".join(words) if text is None else text
    count = len(words)
    return _text_chunk(text, model, finish, {"usage": usage(count)}, {"timings": timings(count)})


def text_events(words: list[str], model: str, finish: str) -> list[bytes]:
    """Usage and timings always stand in the last chunk."""
    said = [data(_text_chunk(word, model, None, {}, {})) for word in words]
    return [*said, data(text_body(words, model, finish, text="")), DONE]


def native_body(words: list[str], model: str, finish: str, content: str | None = None) -> Json:
    count = len(words)
    return {
        "index": 0,
        "content": "".join(words) if content is None else content,
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": model,
        "tokens_predicted": count,
        "tokens_evaluated": PROMPT_TOKENS,
        "generation_settings": {"temperature": 0.800000011920929, "n_predict": count},
        "prompt": "hi",
        "has_new_line": False,
        "truncated": False,
        "stop_type": "limit" if finish == "length" else "eos",
        "stopping_word": "",
        "tokens_cached": PROMPT_TOKENS + count - 1,
        "timings": timings(count),
    }


def native_events(words: list[str], model: str, finish: str) -> list[bytes]:
    """No sentinel: the last event says `"stop":true`."""

    def chunk(index: int, word: str) -> bytes:
        start = {"index": 0, "content": word, "tokens": [index], "stop": False, "id_slot": -1}
        return data({**start, "tokens_predicted": index + 1, "tokens_evaluated": PROMPT_TOKENS})

    said = [chunk(index, word) for index, word in enumerate(words)]
    return [*said, data(native_body(words, model, finish, content=""))]
