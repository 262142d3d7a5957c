"""The answers under way, so that those which outlive the gateway's patience can be ended properly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from gateway.errors import GatewayError

__all__ = ["Cuttable", "LiveAnswers"]


class Cuttable(Protocol):
    def cut(self, error: GatewayError) -> None:
        """End the answer with this error, told to the client as its state allows. Never awaits."""


class LiveAnswers:
    def __init__(self) -> None:
        self._answers: set[Cuttable] = set()

    def __repr__(self) -> str:
        return f"<LiveAnswers {len(self._answers)}>"

    @contextmanager
    def holding(self, answer: Cuttable) -> Iterator[None]:
        self._answers.add(answer)
        try:
            yield
        finally:
            self._answers.discard(answer)

    def cut(self, error: GatewayError) -> None:
        """End all of them."""
        for answer in list(self._answers):
            answer.cut(error)
