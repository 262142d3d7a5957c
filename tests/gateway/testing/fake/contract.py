"""The contract of an answer: everything except the text that it says.

The contract has the status line, the set of headers, the names, order and kinds of members, the sequence of
frames, and the end of the body. All numbers are one kind, and all texts are one kind. Values that programs
depend on, such as `finish_reason`, are compared exactly.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import orjson

from tests.support.client import RawClient, request_bytes
from tests.support.sse import FrameReader, data_of

SWITCHED_ON = frozenset(
    {
        "object",
        "type",
        "role",
        "finish_reason",
        "stop_reason",
        "stop_type",
        "status",
        "stop",
        "truncated",
        "code",
    }
    | {"index", "total_slots", "is_sleeping", "endpoint_slots", "endpoint_metrics", "is_processing", "format"}
)
"""Members whose values are part of the contract."""
FREE = frozenset(
    {"chat_template_caps", "ui_settings", "logit_bias", "lora", "families", "tags", "capabilities"}
)
"""Members that depend on the model. Only their presence is part of the contract."""
ONE_OR_MORE = frozenset({"tokens", "bytes", "embedding"})
"""Lists whose length depends on the words."""


BY_BUILD = frozenset({"adaptive_target", "adaptive_decay"})
"""Members that only the newer of the two compared llama-server builds has."""
METRICS_BY_BUILD = (b"prompt_tokens_cached_total", b"spec_decode_")


@dataclass(frozen=True)
class Contract:
    status: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    frames: tuple[Any, ...]
    clean_end: bool | None


def shape(value: object, name: str = "") -> object:
    if name in FREE:
        return type(value).__name__
    if isinstance(value, dict):
        return [(key, shape(item, key)) for key, item in value.items() if key not in BY_BUILD]
    if isinstance(value, list):
        shapes = [shape(item, name) for item in value]
        return shapes[:1] if name in ONE_OR_MORE else shapes
    if name in SWITCHED_ON:
        return value
    if name.endswith(("_per_second", "_per_token_ms")):
        return "rate"  # the rate of nothing in no time is 0 in one build and null in another
    return "number" if type(value) in (int, float) else type(value).__name__


def frame_shape(frame: bytes) -> object:
    name, _, _ = frame.rpartition(b"data: ")
    content = data_of(frame)
    if frame.startswith(b":"):
        return "comment"
    return name, content if content in (b"[DONE]", b"null") else shape(orjson.loads(content))


def body_shape(content_type: bytes, body: bytes) -> tuple[Any, ...]:
    if content_type.startswith(b"text/event-stream"):
        return in_order(tuple(map(frame_shape, FrameReader().feed(body))))
    if content_type.startswith(b"application/json") and body:
        return (shape(orjson.loads(body)),)
    lines = [line for line in body.split(b"\n") if not any(name in line for name in METRICS_BY_BUILD)]
    return tuple(tuple(line.split(b" ")[: 3 if line.startswith(b"#") else 1]) for line in lines)


def in_order(frames: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the frames of several choices sorted, because the order of the choices varies."""
    if not any("('index', 1)" in repr(frame) for frame in frames):
        return frames
    return tuple((frame, len(list(same))) for frame, same in itertools.groupby(sorted(frames, key=repr)))


def header_contract(headers: tuple[tuple[bytes, bytes], ...]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers sorted, because their order varies between llama-server processes."""
    varying = (b"content-length", b"process-start-time-unix")
    return tuple(sorted((name, b"" if name in varying else value) for name, value in headers))


async def contract_of(url: str, method: str, path: str, body: object, *headers: bytes) -> Contract:
    """Send a request and return the contract of the answer. `body` is JSON, bytes, or None."""
    if isinstance(body, bytes):
        kind = () if headers else (b"Content-Type: application/json",)
        request = request_bytes(method, path, *kind, *headers, body=body)
    else:
        request = request_bytes(method, path, *headers, json=body)
    async with await RawClient.connect(url) as client:
        await client.send(request)
        head = await client.head(20)
        content = b"" if method == "HEAD" else await client.body(20)
        kind_of_body = head.get(b"content-type") or b""
        frames = body_shape(kind_of_body, content)
        return Contract(head.start_line, header_contract(head.headers), frames, client.clean_end)
