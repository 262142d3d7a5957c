"""Which teller tells at which door, and how several choices make one answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from slotgate.gateway.testing.fake.protocols.answer import Told
from slotgate.gateway.testing.fake.protocols.chat import ChatTeller
from slotgate.gateway.testing.fake.protocols.formatter import Teller
from slotgate.gateway.testing.fake.protocols.messages import MessagesTeller
from slotgate.gateway.testing.fake.protocols.native import NativeTeller
from slotgate.gateway.testing.fake.protocols.request import Asked, Door
from slotgate.gateway.testing.fake.protocols.responses import ResponsesTeller
from slotgate.gateway.testing.fake.protocols.text import TextTeller
from slotgate.gateway.testing.fake.protocols.transcription import TranscriptTeller

__all__ = ["TELLERS", "together"]

TELLERS: Final[dict[Door, Callable[[Told], Teller]]] = {
    Door.CHAT: ChatTeller,
    Door.TEXT: TextTeller,
    Door.NATIVE: NativeTeller,
    Door.INFILL: NativeTeller,
    Door.RESPONSES: ResponsesTeller,
    Door.MESSAGES: MessagesTeller,
    Door.SPEECH: TranscriptTeller,
}


def together(question: Asked, tellers: Sequence[Teller]) -> object:
    """All choices in one answer. Usage and timings are those of the first, as llama-server counts them."""
    whole = [teller.whole() for teller in tellers]
    if len(whole) == 1:
        return whole[0]
    if question.door in (Door.NATIVE, Door.INFILL):
        return whole
    return {**whole[0], "choices": [choice for one in whole for choice in one["choices"]]}
