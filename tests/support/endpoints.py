"""A valid request, llama-server's answers, and a protocol reader for every endpoint of the gateway.

Tests of all endpoints take their parameters from `gateway/api/endpoints.py` and from this table. They fail
for an endpoint that is missing here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from slotgate.gateway.api.dialects import MessagesDialect, ResponsesDialect
from slotgate.gateway.api.endpoints import ENDPOINTS, Endpoint
from tests.support import llama_dialects, llama_frames
from tests.support.answer import WholeResponse, exchange
from tests.support.client import Frame, RawClient, request_bytes
from tests.support.llama_frames import CACHED_TOKENS, PROMPT_TOKENS, Json, data
from tests.support.notation import DONE, END, H, chunked
from tests.support.script import Fin, Script, Write

MODEL = "/home/somebody/models/tiny.gguf"
"""The backend's name for its model: a path that no client may see."""
WORDS = [" one", " two"]
TEXT = "".join(WORDS)
BOUNDARY = b"a-boundary"

_MESSAGES = [{"role": "user", "content": "hi"}]
_GENERATED = (PROMPT_TOKENS, CACHED_TOKENS, len(WORDS))
_READ = (PROMPT_TOKENS, 0, 0)
UNSTATED = (0, 0, 0)
_VECTORS = {"model": MODEL, "object": "list", "usage": {"prompt_tokens": PROMPT_TOKENS, "total_tokens": 31}}


@dataclass(frozen=True, slots=True)
class Sample:
    body: Json
    """The members of a valid request, without model and stream."""
    whole: object
    events: Sequence[bytes] = ()
    """The events of a stream, if the endpoint has one. The first has no text, the last means success."""
    counts: tuple[int, int, int] = UNSTATED
    """The prompt, cached and completion tokens of a buffered answer."""
    wide: Json | None = None
    """Members that make the request take three slots."""


def _spoken() -> list[bytes]:
    deltas = [data({"type": "transcript.text.delta", "delta": word}) for word in WORDS]
    usage = {"type": "tokens", "input_tokens": PROMPT_TOKENS, "output_tokens": len(WORDS)}
    return [*deltas, data({"type": "transcript.text.done", "text": TEXT, "usage": usage}), DONE]


_NATIVE = (
    llama_frames.native_body(WORDS, MODEL, "stop"),
    llama_frames.native_events(WORDS, MODEL, "stop"),
    _GENERATED,
)

SAMPLES: dict[str, Sample] = {
    "chat": Sample(
        {"messages": _MESSAGES},
        llama_frames.chat_body(WORDS, MODEL, "stop"),
        llama_frames.chat_events(WORDS, MODEL, "stop", include_usage=False),
        _GENERATED,
        wide={"n": 3},
    ),
    "completions": Sample(
        {"prompt": "hi"},
        llama_frames.text_body(WORDS, MODEL, "stop"),
        llama_frames.text_events(WORDS, MODEL, "stop"),
        _GENERATED,
        wide={"prompt": ["a", "b", "c"]},
    ),
    "responses": Sample(
        {"input": "hi"},
        llama_dialects.response_body(WORDS, MODEL),
        llama_dialects.response_events(WORDS, MODEL),
        _GENERATED,
        wide={"n": 3},
    ),
    "messages": Sample(
        {"messages": _MESSAGES, "max_tokens": 9},
        llama_dialects.message_body(WORDS, MODEL, "stop"),
        llama_dialects.message_events(WORDS, MODEL, "stop"),
        _GENERATED,
    ),
    "count_tokens": Sample({"messages": _MESSAGES}, {"input_tokens": PROMPT_TOKENS}),
    "native": Sample({"prompt": "hi"}, *_NATIVE, wide={"prompt": [[1], [2], [3]]}),
    "infill": Sample({"input_prefix": "a", "input_suffix": "b"}, *_NATIVE, wide={"n": 3}),
    "embeddings": Sample(
        {"input": "hi"},
        {**_VECTORS, "data": [{"embedding": [0.5], "index": 0, "object": "embedding"}]},
        counts=_READ,
        wide={"input": ["a", "b", "c"]},
    ),
    "embedding": Sample(
        {"content": "hi"}, [{"index": 0, "embedding": [[0.5, 0.25]]}], wide={"content": ["a", "b", "c"]}
    ),
    "rerank": Sample(
        {"query": "hi", "documents": ["a"]},
        {**_VECTORS, "results": [{"index": 0, "relevance_score": 0.5}]},
        counts=_READ,
        wide={"documents": ["a", "b", "c"]},
    ),
    "tokenize": Sample({"content": "hi"}, {"tokens": [6004, 665]}),
    "detokenize": Sample({"tokens": [6004]}, {"content": "hi"}),
    "apply_template": Sample({"messages": _MESSAGES}, {"prompt": "user: hi\nassistant:"}),
    "transcriptions": Sample(
        {"language": "en"},
        {"text": TEXT, "usage": {"type": "tokens", "input_tokens": PROMPT_TOKENS, "output_tokens": 2}},
        _spoken(),
        (PROMPT_TOKENS, 0, len(WORDS)),
    ),
}


@dataclass(frozen=True, slots=True)
class Way:
    """A public path of an endpoint. Its `repr` is the id of the test parameter."""

    endpoint: Endpoint
    path: str

    @property
    def sample(self) -> Sample:
        return SAMPLES[self.endpoint.name]

    @property
    def upstream(self) -> str:
        return self.endpoint.upstream_path

    def __repr__(self) -> str:
        return self.path

    # -- requests

    def body(self, **members: object) -> tuple[bytes, list[bytes]]:
        """Return the body and its headers. Members that are None are left out."""
        given = {name: value for name, value in (self.sample.body | members).items() if value is not None}
        if not self.endpoint.multipart:
            return orjson.dumps(given), [b"content-type: application/json"]
        fields = [_part(name, _form_text(value)) for name, value in given.items()]
        sound = _part("file", b"RIFF\x00\x01", b'; filename="a.wav"')
        body = b"".join([*fields, sound]) + b"--%b--\r\n" % BOUNDARY
        return body, [b"content-type: multipart/form-data; boundary=" + BOUNDARY]

    def request(self, *headers: bytes, **members: object) -> bytes:
        body, kind = self.body(**members)
        return request_bytes("POST", self.path, *kind, *headers, body=body)

    async def ask(self, url: str, *headers: bytes, **members: object) -> WholeResponse:
        """Send the request and return the whole response, which is not a stream."""
        return await exchange(url, self.request(*headers, **members), within=10)

    async def frames(self, url: str, *headers: bytes, **members: object) -> list[Frame]:
        """Send the request and return the whole stream."""
        async with await RawClient.connect(url) as client:
            await client.send(self.request(*headers, **{"stream": True, **members}))
            await client.head()
            assert client.status == 200, await client.body()
            frames = [frame async for frame in client.frames()]
            assert client.clean_end, client
            return frames

    def members_of(self, request_body: bytes) -> Json:
        """Return the members that the backend gets."""
        if not self.endpoint.multipart:
            members: Json = orjson.loads(request_body)
            return members
        parts = request_body.split(b"--" + BOUNDARY)[1:-1]
        named_parts = [part.split(b'name="', 1)[1].partition(b'"') for part in parts]
        return {
            name.decode(): rest.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n").decode("latin-1")
            for name, _, rest in named_parts
        }

    # -- answers of the backend

    def head(self, text: str = "a") -> bytes:
        """Return the beginning of a stream up to its first text, inclusive."""
        events = list(self.sample.events)
        first = next(index for index, event in enumerate(events) if WORDS[0].encode() in event)
        return chunked(*events[:first], events[first].replace(WORDS[0].encode(), text.encode()))

    def silent_head(self) -> bytes:
        """Return the beginning of a stream before its first text. It may be empty."""
        events = list(self.sample.events)
        first = next(index for index, event in enumerate(events) if WORDS[0].encode() in event)
        return chunked(*events[:first])

    def script(self) -> Script:
        """Return the script of a whole stream. The last event is in one write with the final chunk."""
        *before, last = self.sample.events
        return [Write(H + chunked(*before)), Write(chunked(last) + END), Fin()]

    def error_event(self, code: int, message: str, kind: str) -> bytes:
        """Return the event with which llama-server fails inside a stream of this protocol."""
        error = {"code": code, "message": message, "type": kind}
        if self.endpoint.dialect is MessagesDialect:
            return b"event: error\n" + data(error)
        return data(error if self.endpoint.dialect is ResponsesDialect else {"error": error})

    # -- answers of the gateway

    def text(self, frames: Sequence[Frame]) -> str:
        return "".join(_text(chunk) for chunk in chunks_of(frames))

    def error(self, frames: Sequence[Frame]) -> Json:
        """Return the error that ended a stream, after checking that nothing in it means success."""
        *before, last = frames
        assert not any(says_success(frame.data) for frame in frames), frames
        assert not any(b"error" in frame.data for frame in before if b'"error":null' not in frame.data), (
            frames
        )
        [said] = chunks_of([last])
        if self.endpoint.dialect is MessagesDialect:
            assert last.data.startswith(b"event: error\ndata: {"), last
            assert said["type"] == "error"
            return _object(said["error"], "type", "message")
        if self.endpoint.dialect is ResponsesDialect:
            return _response_error(last, said, [chunk for chunk in chunks_of(before) if "response" in chunk])
        assert last.data.startswith(b"data: {"), last
        return _object(said["error"], "type", "code", "message")


WAYS = [Way(endpoint, path) for endpoint in ENDPOINTS for path in endpoint.paths]
SLOTTED = [way for way in WAYS if way.endpoint.takes_slot]
STREAMING = [way for way in SLOTTED if way.endpoint.body_format.streams]
SLOTLESS = [way for way in WAYS if not way.endpoint.takes_slot]


def speaking(*modes: bool) -> Iterator[tuple[Way, bool]]:
    """Every path that takes a slot, with and without a stream."""
    for way in SLOTTED:
        for stream in modes or (True, False):
            if way.endpoint.body_format.streams or not stream:
                yield way, stream


def says_success(frame: bytes) -> bool:
    """Return True if the frames tell a client that the answer is complete."""
    marks = (DONE, b'"stop":true', b"event: response.completed", b"event: message_stop")
    return any(mark in frame for mark in marks)


def chunks_of(frames: Sequence[Frame]) -> list[Json]:
    """Return the parsed data of the frames, without comments and `[DONE]`."""
    lines = [line for frame in frames for line in frame.data.split(b"\n")]
    return [orjson.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def models_in(said: object) -> set[str]:
    """Yield every value of a member `model`, at any depth."""
    if isinstance(said, list):
        return set().union(*map(models_in, said))
    if not isinstance(said, dict):
        return set()
    own = {said["model"]} if isinstance(said.get("model"), str) else set()
    return own.union(*map(models_in, said.values()))


def _part(name: str, value: bytes, more: bytes = b"") -> bytes:
    head = b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n' % (BOUNDARY, name.encode(), more)
    return head + value + b"\r\n"


def _form_text(value: object) -> bytes:
    return str(value).lower().encode() if isinstance(value, bool) else str(value).encode()


def _text(chunk: Json) -> str:
    for choice in chunk.get("choices", ()):
        return choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    delta: Any = chunk.get("delta", chunk.get("content"))
    said = delta.get("text") if isinstance(delta, dict) else delta
    return said if isinstance(said, str) else ""


def _response_error(last: Frame, said: Json, before: list[Json]) -> Json:
    assert isinstance(said["sequence_number"], int)
    if not before:
        assert last.data.startswith(b"event: error\ndata: {"), last
        assert (said["type"], said["param"], said["sequence_number"]) == ("error", None, 0)
        return _object(said, "code", "message")
    assert last.data.startswith(b"event: response.failed\ndata: {"), last
    response = said["response"]
    assert (said["type"], response["status"]) == ("response.failed", "failed")
    assert response["id"] == before[-1]["response"]["id"]
    return _object(response["error"], "code", "message")


def _object(error: Json, *names: str) -> Json:
    assert set(names) <= error.keys(), error
    return error
