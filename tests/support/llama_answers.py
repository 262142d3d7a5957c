"""llama-server's answers to requests, as scripts. Pure functions.

Paths that take a slot are in `GENERATING`. All other paths answer at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotgate.gateway.testing.fake.model.slots import LlamaSlots
from slotgate.gateway.testing.fake.net.wire import STREAM_HEAD
from slotgate.gateway.testing.fake.protocols.control import control_body
from slotgate.gateway.testing.fake.script.scene import Machine, Scene
from tests.support import llama_dialects, llama_frames
from tests.support.connection import ReceivedRequest
from tests.support.llama_frames import PROMPT_TOKENS, Json
from tests.support.notation import END, answer, chunked
from tests.support.script import Fin, Paced, Script, Sleep, Write

CHAT = frozenset({"/v1/chat/completions", "/chat/completions"})
TEXT = frozenset({"/v1/completions"})
NATIVE = frozenset({"/completion", "/completions", "/infill"})
RESPONSES = frozenset({"/v1/responses"})
MESSAGES = frozenset({"/v1/messages"})
EMBEDDINGS = frozenset({"/v1/embeddings", "/embeddings", "/embedding"})
RANKING = frozenset({"/v1/rerank", "/rerank", "/v1/reranking", "/reranking"})
SPEECH = frozenset({"/v1/audio/transcriptions"})
GENERATING = CHAT | TEXT | NATIVE | RESPONSES | MESSAGES | EMBEDDINGS | RANKING | SPEECH

KEEP_ALIVE = b"Keep-Alive: timeout=5, max=100"
LISTS = ("prompt", "input", "documents", "content")
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")


def width(request: ReceivedRequest) -> int:
    """Return the number of slots that a request takes: one for each choice, prompt, input or document."""
    if request.path not in GENERATING:
        return 0
    if request.path in SPEECH | RESPONSES:
        return 1
    body = request.json()
    counts = [len(body[name]) for name in LISTS if isinstance(body.get(name), list)]
    return max([1, int(body.get("n") or 1), *counts])


def generation(request: ReceivedRequest, model: str, tokens: int, rate: float) -> Script:
    """Return an answer of `tokens` words, or as many as the request's limit, at `rate` words a second."""
    if request.path not in GENERATING - SPEECH:
        return [Write(_plain(request))]
    body = request.json()
    limit = next((body[name] for name in LIMITS if body.get(name)), None)
    words = [f" w{index}" for index in range(limit or tokens)]
    finish = "length" if limit else "stop"
    if body.get("stream"):
        return paced(_events(request.path, body, words, model, finish), rate)
    content = _whole(request.path, body, words, model, finish)
    return [Sleep(len(words) / rate), Write(answer(200, content, KEEP_ALIVE))]


def paced(events: Sequence[bytes], rate: float) -> Script:
    """Return a stream. As in llama-server, the last event is in one write with the final chunk."""
    *before, last = events
    spoken = Paced(rate, len(before), before.__getitem__)
    return [Write(STREAM_HEAD), spoken, Write(chunked(last) + END), Fin()]


def _events(path: str, body: Json, words: list[str], model: str, finish: str) -> list[bytes]:
    if path in CHAT:
        asked = bool((body.get("stream_options") or {}).get("include_usage"))
        return llama_frames.chat_events(words, model, finish, include_usage=asked)
    if path in TEXT:
        return llama_frames.text_events(words, model, finish)
    if path in RESPONSES:
        return llama_dialects.response_events(words, model)
    if path in MESSAGES:
        return llama_dialects.message_events(words, model, finish)
    return llama_frames.native_events(words, model, finish)


def _whole(path: str, body: Json, words: list[str], model: str, finish: str) -> object:
    if path in CHAT:
        return llama_frames.chat_body(words, model, finish)
    if path in TEXT:
        return llama_frames.text_body(words, model, finish)
    if path in RESPONSES:
        return llama_dialects.response_body(words, model)
    if path in MESSAGES:
        return llama_dialects.message_body(words, model, finish)
    if path in NATIVE:
        return llama_frames.native_body(words, model, finish)
    return _vectors(path, body, model)


def _vectors(path: str, body: Json, model: str) -> object:
    tokens = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS}
    head = {"model": model, "object": "list", "usage": tokens}
    if path in RANKING:
        scores = [{"index": index, "relevance_score": 0.5} for index, _ in enumerate(body["documents"])]
        return {**head, "results": scores}
    inputs = body.get("input", body.get("content"))
    count = len(inputs) if isinstance(inputs, list) else 1
    if path == "/embedding":
        return [{"index": index, "embedding": [[0.5, 0.25]]} for index in range(count)]
    vectors = [{"embedding": [0.5, 0.25], "index": i, "object": "embedding"} for i in range(count)]
    return {**head, "data": vectors}


def _plain(request: ReceivedRequest) -> bytes:
    """Return the answer of a path that takes no slot, or 404."""
    bodies = {
        "/v1/messages/count_tokens": {"input_tokens": PROMPT_TOKENS},
        "/tokenize": {"tokens": [6004, 665]},
        "/detokenize": {"content": "hi there"},
        "/apply-template": {"prompt": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
        "/v1/audio/transcriptions": {"text": "hi there"},
    }
    if request.path in bodies:
        return answer(200, bodies[request.path], KEEP_ALIVE)
    missing = {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}
    return answer(404, missing, b"Connection: close")


def props(slots: int, n_ctx: int, model: str) -> Json:
    said: Json = control_body("/props", "", _scene(slots, n_ctx, model), LlamaSlots(slots))
    return said | {"model_path": model}


def models(n_ctx: int, model: str) -> Json:
    said: Json = control_body("/v1/models", "", _scene(1, n_ctx, model), LlamaSlots(1))
    return said


def _scene(slots: int, n_ctx: int, model: str) -> Scene:
    return Scene(Machine(model=model, slots=slots, n_ctx=n_ctx))
