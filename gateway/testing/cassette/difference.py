"""The differences between two requests, and the recording that is most like a request. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from slotgate.gateway.testing.cassette.exchange import RecordedExchange
from slotgate.gateway.testing.cassette.request import RecordedRequest

__all__ = ["Difference", "differences", "nearest"]

_SHOWN = 60
_CONTEXT = 20
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference. `where` is a path such as `json.messages[1].content`. The values are shortened."""

    where: str
    recorded: str
    asked: str

    def __str__(self) -> str:
        return f"{self.where}: recorded {self.recorded}, asked {self.asked}"


def differences(recorded: RecordedRequest, asked: RecordedRequest) -> list[Difference]:
    """Return every difference between a recorded request and another request."""
    return list(_walk("", recorded.facts(), asked.facts()))


def nearest(
    exchanges: Iterable[RecordedExchange], asked: RecordedRequest
) -> tuple[RecordedExchange, list[Difference]] | None:
    """Return the recording most like the request: equal path first, then the fewest differences."""
    found = [(each, differences(each.request, asked)) for each in exchanges]
    return min(
        found,
        key=lambda pair: (
            pair[0].request.path != asked.path,
            pair[0].request.method != asked.method,
            len(pair[1]),
        ),
        default=None,
    )


def _walk(where: str, recorded: Any, asked: Any) -> Iterator[Difference]:  # noqa: ANN401
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for name in [*recorded, *(name for name in asked if name not in recorded)]:
            place = f"{where}.{name}" if where else str(name)
            yield from _walk(place, recorded.get(name, _ABSENT), asked.get(name, _ABSENT))
    elif isinstance(recorded, list) and isinstance(asked, list):
        for index in range(max(len(recorded), len(asked))):
            yield from _walk(f"{where}[{index}]", _item(recorded, index), _item(asked, index))
    elif recorded != asked or isinstance(recorded, bool) != isinstance(asked, bool):
        start = _first_difference(recorded, asked)
        yield Difference(where, _shown(recorded, start), _shown(asked, start))


def _item(values: list[Any], index: int) -> Any:  # noqa: ANN401
    return values[index] if index < len(values) else _ABSENT


def _first_difference(recorded: object, asked: object) -> int:
    if not isinstance(recorded, str) or not isinstance(asked, str):
        return 0
    pairs = enumerate(zip(recorded, asked, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(recorded), len(asked)))


def _shown(value: object, start: int) -> str:
    """Return a value for display. A long text is cut to the part where it begins to differ."""
    if value is _ABSENT:
        return "nothing"
    before = ""
    if isinstance(value, str) and start > _SHOWN - _CONTEXT:
        value, before = value[start - _CONTEXT :], "…"
    text = json.dumps(value, ensure_ascii=False)
    return before + (text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
