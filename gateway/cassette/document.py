"""An exchange as text: JSON that is read and compared by people, with one line for each read of the response.

    [12.4, "data: {\\"choices\\":…}\\n\\n"]         milliseconds, and the bytes as text
    [12.9, {"base64": "/+8="}]                 the same for bytes that are no UTF-8

What is read back is the exchange that was written, byte for byte.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from gateway.cassette.exchange import Ending, Exchange, Read, RecordedResponse
from gateway.cassette.request import RecordedRequest

__all__ = ["FORMAT", "read_exchange", "written"]

FORMAT = 1


def written(exchange: Exchange) -> bytes:
    try:
        return _text(exchange, ascii_only=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can say and UTF-8 cannot
        return _text(exchange, ascii_only=True).encode()


def _text(exchange: Exchange, *, ascii_only: bool) -> str:
    response = exchange.response
    head = {
        "cassette": FORMAT,
        "request": exchange.request.facts(),
        "response": {
            "status": response.status,
            "head_ms": response.head_ms,
            "headers": dict(_joined(response.headers)),
            "ending": response.ending.value,
            "end_ms": response.end_ms,
            "closes": response.closes,
        },
    }
    lines = [
        json.dumps([read.ms, _bytes_shown(read.data)], ensure_ascii=ascii_only) for read in response.reads
    ]
    reads = "\n      " + ",\n      ".join(lines) + "\n    " if lines else ""
    text = json.dumps(head, indent=2, ensure_ascii=ascii_only).removesuffix("\n  }\n}")
    return f'{text},\n    "reads": [{reads}]\n  }}\n}}\n'


def read_exchange(text: bytes, name: str = "") -> Exchange:
    """Raises `ValueError` that says what is wrong with it."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("cassette") != FORMAT:
        raise ValueError(f'it is no recording of this format ("cassette": {FORMAT})')
    try:
        request = RecordedRequest.from_facts(document["request"])
        return Exchange(request, _response(document["response"]), name)
    except KeyError as error:
        raise ValueError(f"{error} is missing") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a value has the wrong type: {error}") from error


def _response(facts: dict[str, Any]) -> RecordedResponse:
    headers = [
        (name, value)
        for name, values in facts["headers"].items()
        for value in (values if isinstance(values, list) else [values])
    ]
    return RecordedResponse(
        status=facts["status"],
        head_ms=facts["head_ms"],
        headers=tuple(headers),
        reads=tuple(Read(ms, _bytes_meant(shown)) for ms, shown in facts["reads"]),
        ending=Ending(facts["ending"]),
        end_ms=facts["end_ms"],
        closes=facts["closes"],
    )


def _joined(headers: tuple[tuple[str, str], ...]) -> dict[str, str | list[str]]:
    """By name; a header that came more than once has a list of values."""
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    return {name: given if len(given) > 1 else given[0] for name, given in values.items()}


def _bytes_shown(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes_meant(shown: str | dict[str, str]) -> bytes:
    return shown.encode() if isinstance(shown, str) else base64.b64decode(shown["base64"], validate=True)
