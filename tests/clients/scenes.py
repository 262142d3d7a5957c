"""A short answer of a llama-server in the protocol of each endpoint.

Its words are `WORDS`. `events` is a whole stream, event by event. Tests truncate it, stop it, or repeat it
for ever.
"""

from __future__ import annotations

from typing import Any

import orjson

from slotgate.gateway.testing.fake.net.wire import STREAM_HEAD
from tests.clients.driven import TOOL
from tests.support.gateway import CHAT
from tests.support.llama_dialects import message_events, named, response_events
from tests.support.llama_frames import chat_events, data, text_events
from tests.support.notation import END, chunked
from tests.support.script import Fin, Paced, Script, Step, Write

WORDS = [" one", " two", " three"]
TEXT = "".join(WORDS)
ARGUMENTS = ['{"city":', '"Oslo"}']
CALL = (TOOL, "".join(ARGUMENTS))
THOUGHT = ["let me", " see"]
_FILE = "/srv/models/tiny.gguf"
_CALL_ID = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6"
_REASONING_ID = "rs_q5wqIpW1kyQjCXnDJNPrZhIBwYMDOgaz"


def events(path: str, words: list[str] = WORDS) -> list[bytes]:
    if path == CHAT:
        return chat_events(words, _FILE, "stop", include_usage=True)
    if path == "/v1/completions":
        return text_events(words, _FILE, "stop")
    if path == "/v1/responses":
        return response_events(words, _FILE)
    return message_events(words, _FILE, "stop")


def first_word(path: str) -> int:
    """The index of the first event with output."""
    return next(index for index, event in enumerate(events(path)) if b" one" in event)


def whole(path: str, *before: Step) -> Script:
    """Return the script of the stream, with further steps between its headers and its first event."""
    report = (Write(chunked(event)) for event in events(path))
    return [Write(STREAM_HEAD), *before, *report, Write(END), Fin()]


def endless(path: str) -> Script:
    """Return a stream that repeats its first word for ever."""
    at = first_word(path)
    begun, word = events(path)[:at], events(path)[at]
    return [Write(STREAM_HEAD + chunked(*begun)), Paced(rate=100, frame=lambda _: word)]


def cut(path: str) -> Script:
    """Return a stream whose connection closes after the second word."""
    return [Write(STREAM_HEAD), Write(chunked(*events(path)[: first_word(path) + 2])), Fin()]


# -- tools


def _delta(delta: dict[str, Any]) -> bytes:
    return chat_events([" one"], _FILE, "stop", include_usage=True)[1].replace(
        b'{"content":" one"}', orjson.dumps(delta)
    )


def tool_events(path: str) -> list[bytes]:
    """Reasoning, and a tool call with its arguments in two pieces."""
    return {CHAT: _chat_tool, "/v1/responses": _response_tool, "/v1/messages": _message_tool}[path]()


def _chat_tool() -> list[bytes]:
    role, _, *tail = chat_events([" one"], _FILE, "tool_calls", include_usage=True)
    named = {"index": 0, "id": _CALL_ID, "type": "function", "function": {"name": TOOL, "arguments": ""}}
    calls = [named, *({"index": 0, "function": {"arguments": piece}} for piece in ARGUMENTS)]
    thought = [_delta({"reasoning_content": piece}) for piece in THOUGHT]
    return [role, *thought, *(_delta({"tool_calls": [call]}) for call in calls), *tail]


def _response_tool() -> list[bytes]:
    """Return the tool call as llama-server sends it: without its id, without parts of the reasoning, and
    without an end of the arguments.
    """
    created, in_progress, *_, completed = response_events(WORDS, _FILE)
    thinking = {"id": _REASONING_ID, "summary": [], "type": "reasoning", "encrypted_content": ""}
    thought = {**thinking, "content": [{"text": "".join(THOUGHT), "type": "reasoning_text"}]}
    call = {"type": "function_call", "call_id": f"fc_{_CALL_ID}", "name": TOOL}
    done = {**call, "status": "completed", "arguments": "".join(ARGUMENTS)}
    end = orjson.loads(completed.partition(b"data: ")[2])
    end["response"]["output"] = [thought, done]
    return [
        created,
        in_progress,
        named("response.output_item.added", item={**thinking, "content": [], "status": "in_progress"}),
        *(named("response.reasoning_text.delta", delta=piece, item_id=_REASONING_ID) for piece in THOUGHT),
        named("response.output_item.added", item={**call, "arguments": "", "status": "in_progress"}),
        *(
            named("response.function_call_arguments.delta", delta=piece, item_id=f"fc_{_CALL_ID}")
            for piece in ARGUMENTS
        ),
        named("response.output_item.done", item=thought),
        named("response.output_item.done", item=done),
        b"event: response.completed\n" + data(end),
    ]


def _message_tool() -> list[bytes]:
    start, *_, delta, stop = message_events(WORDS, _FILE, "stop")

    def block(index: int, begun: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
        return [
            named("content_block_start", index=index, content_block=begun),
            *(named("content_block_delta", index=index, delta=delta) for delta in deltas),
            named("content_block_stop", index=index),
        ]

    thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in THOUGHT]
    signed = {"type": "signature_delta", "signature": ""}
    pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in ARGUMENTS]
    return [
        start,
        *block(0, {"type": "thinking", "thinking": ""}, *thoughts, signed),
        *block(1, {"type": "tool_use", "id": _CALL_ID, "name": TOOL}, *pieces),
        delta.replace(b"end_turn", b"tool_use"),
        stop,
    ]
