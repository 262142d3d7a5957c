"""llama-server's answers of `/v1/responses` and `/v1/messages`, made by the scripted llama-server."""

from __future__ import annotations

from slotgate.gateway.testing.fake.net.wire import Json, named
from slotgate.gateway.testing.fake.protocols.messages import MessagesFormatter
from slotgate.gateway.testing.fake.protocols.responses import ResponsesFormatter
from tests.support.llama_frames import body_of, events_of, generated

__all__ = ["message_body", "message_events", "named", "response_body", "response_events"]


def response_events(words: list[str], model: str) -> list[bytes]:
    return events_of(ResponsesFormatter(generated(model, "stop")), words)


def response_body(words: list[str], model: str) -> Json:
    return body_of(ResponsesFormatter(generated(model, "stop")), words)


def message_events(words: list[str], model: str, finish: str) -> list[bytes]:
    return events_of(MessagesFormatter(generated(model, finish)), words)


def message_body(words: list[str], model: str, finish: str) -> Json:
    return body_of(MessagesFormatter(generated(model, finish)), words)
