"""An exchange as JSON text, made for people to read and compare. Each read of the response has a line.

    [12.4, "data: {\\"choices\\":…}\\n\\n"]         milliseconds, and the bytes as text
    [12.9, {"base64": "/+8="}]                 the same for bytes that are not UTF-8

Reading a written exchange gives the same exchange, byte for byte.
"""

from __future__ import annotations

import base64
import json
import math
import re
from typing import Any, Final

from slotgate.gateway.testing.cassette.exchange import (
    Ending,
    RecordedExchange,
    RecordedRead,
    RecordedResponse,
)
from slotgate.gateway.testing.cassette.request import RecordedRequest

__all__ = ["FORMAT", "read_exchange", "written"]

FORMAT = 1
_STATUSES: Final = range(200, 600)
_is_name = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch
"""A token of RFC 9110, 5.6.2."""
_is_value = re.compile(r"[\t\x20-\x7e\x80-\xff]*").fullmatch
_is_length = re.compile(r"[0-9]{1,19}").fullmatch


def written(exchange: RecordedExchange) -> bytes:
    """Return the exchange as JSON text."""
    try:
        return _text(exchange, ascii_only=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair: JSON can hold it, UTF-8 cannot
        return _text(exchange, ascii_only=True).encode()


def _text(exchange: RecordedExchange, *, ascii_only: bool) -> str:
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


def read_exchange(text: bytes, name: str = "") -> RecordedExchange:
    """Read an exchange. Raises `ValueError` with the reason if the text is not valid.

    People edit these files, so everything is checked here that the player relies on.
    """
    try:
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("cassette") != FORMAT:
            raise ValueError(f'it is not a recording of this format ("cassette": {FORMAT})')
        exchange = RecordedExchange(
            RecordedRequest.from_facts(document["request"]), _response(document["response"]), name
        )
        exchange.request.key  # noqa: B018 - a value that is nested too deep shows itself here
    except KeyError as error:
        raise ValueError(f"{error} is missing") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a value has the wrong type: {error}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return exchange


def _response(facts: dict[str, Any]) -> RecordedResponse:
    return RecordedResponse(
        status=_status(facts["status"]),
        head_ms=_ms("head_ms", facts["head_ms"]),
        headers=tuple(
            (name, _header(name, value))
            for name, values in facts["headers"].items()
            for value in (values if isinstance(values, list) else [values])
        ),
        reads=tuple(RecordedRead(_ms("reads", ms), _bytes_meant(shown)) for ms, shown in facts["reads"]),
        ending=Ending(facts["ending"]),
        end_ms=_ms("end_ms", facts["end_ms"]),
        closes=bool(facts["closes"]),
    )


def _status(value: object) -> int | None:
    if value is not None and (not isinstance(value, int) or value not in _STATUSES):
        raise ValueError(f"status is null or a number from 200 to 599, not {value!r}")
    return value


def _ms(name: str, value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{name}: a time is a number of milliseconds, 0 or more, not {value!r}")
    return value


def _header(name: str, value: object) -> str:
    """Return the value if it can be sent as a header."""
    if not isinstance(value, str) or not _is_name(name) or not _is_value(value):
        raise ValueError(f"headers: {name!r}: {value!r} is not a header")
    if name.lower() == "content-length" and not _is_length(value):
        raise ValueError(f"headers: {value!r} is not a content-length")
    return value


def _joined(headers: tuple[tuple[str, str], ...]) -> dict[str, str | list[str]]:
    """Return the values by name. A header that came more than once has a list of values."""
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
