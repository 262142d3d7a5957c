"""What llama-server writes on `/v1/responses` and `/v1/messages`: the shapes of the shipped stand-in."""

from slotgate.gateway.testing.fake.net.wire import Json, named
from slotgate.gateway.testing.fake.protocols.messages import MessagesTeller
from slotgate.gateway.testing.fake.protocols.responses import ResponsesTeller
from tests.support.llama_frames import body_of, events_of, told

__all__ = ["message_body", "message_events", "named", "response_body", "response_events"]


def response_events(words: list[str], model: str) -> list[bytes]:
    return events_of(ResponsesTeller(told(model, "stop")), words)


def response_body(words: list[str], model: str) -> Json:
    return body_of(ResponsesTeller(told(model, "stop")), words)


def message_events(words: list[str], model: str, finish: str) -> list[bytes]:
    return events_of(MessagesTeller(told(model, finish)), words)


def message_body(words: list[str], model: str, finish: str) -> Json:
    return body_of(MessagesTeller(told(model, finish)), words)
