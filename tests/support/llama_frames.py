"""llama-server's answers of the OpenAI and native paths, made by the scripted llama-server.

The functions take the words of the answer. All other figures are constant.
"""

from __future__ import annotations

import random

from slotgate.gateway.testing.fake.net.wire import DONE, Json, data
from slotgate.gateway.testing.fake.protocols.answer import (
    CREATED,
    FINGERPRINT,
    AnswerContext,
    GeneratedAnswer,
)
from slotgate.gateway.testing.fake.protocols.chat import ChatFormatter
from slotgate.gateway.testing.fake.protocols.formatter import AnswerFormatter
from slotgate.gateway.testing.fake.protocols.native import NativeFormatter
from slotgate.gateway.testing.fake.protocols.text import TextFormatter
from slotgate.gateway.testing.fake.script.answer_content import Token, TokenKind

__all__ = [
    "CACHED_TOKENS",
    "CREATED",
    "FINGERPRINT",
    "PROMPT_TOKENS",
    "Json",
    "body_of",
    "chat_body",
    "chat_events",
    "data",
    "events_of",
    "generated",
    "native_body",
    "native_events",
    "text_body",
    "text_events",
    "timings",
    "usage",
]

PROMPT_TOKENS = 31
CACHED_TOKENS = 30
_ID = "MaAutLNH5ODpDcJO2ttHKib93RGZ5pdI"


def generated(model: str, finish: str, **body: object) -> GeneratedAnswer:
    """Return an answer without tokens."""
    context = AnswerContext(
        model=model,
        prompt="hi",
        prompt_tokens=PROMPT_TOKENS,
        cached_tokens=CACHED_TOKENS,
        limit=-1,
        body=body,
        random=random.Random(0),
        id=_ID,
    )
    return GeneratedAnswer(context, finish=finish)


def usage(predicted: int) -> Json:
    return _spoken(predicted).usage()


def timings(predicted: int) -> Json:
    return _spoken(predicted).timings()


def _spoken(predicted: int) -> GeneratedAnswer:
    answer = generated("m", "stop")
    for _ in range(predicted):
        answer.append(Token(TokenKind.TEXT, "a"))
    return answer


def events_of(formatter: AnswerFormatter, words: list[str], *, done: bool = False) -> list[bytes]:
    """Return the events of the whole stream."""
    said = [formatter.add(Token(TokenKind.TEXT, word)) for word in words] + formatter.finish()
    events = [event + b"\n\n" for written in said for event in written.split(b"\n\n") if event]
    return [*events, DONE] if done else events


def body_of(formatter: AnswerFormatter, words: list[str]) -> Json:
    """Return the body of the same answer without a stream."""
    for word in words:
        formatter.add(Token(TokenKind.TEXT, word))
    return formatter.body()


def chat_events(words: list[str], model: str, finish: str, *, include_usage: bool) -> list[bytes]:
    """Return the stream. Timings are in the finish chunk, or with `include_usage` in the usage chunk."""
    asked = generated(model, finish, stream_options={"include_usage": include_usage})
    return events_of(ChatFormatter(asked), words, done=True)


def chat_body(words: list[str], model: str, finish: str) -> Json:
    return body_of(ChatFormatter(generated(model, finish)), words)


def text_events(words: list[str], model: str, finish: str) -> list[bytes]:
    """Return the stream. Usage and timings are always in the last chunk."""
    return events_of(TextFormatter(generated(model, finish)), words, done=True)


def text_body(words: list[str], model: str, finish: str) -> Json:
    return body_of(TextFormatter(generated(model, finish)), words)


def native_events(words: list[str], model: str, finish: str) -> list[bytes]:
    """Return the stream. It has no sentinel: the last event has `"stop":true`."""
    return events_of(NativeFormatter(generated(model, finish, stream=True)), words)


def native_body(words: list[str], model: str, finish: str) -> Json:
    return body_of(NativeFormatter(generated(model, finish)), words)
