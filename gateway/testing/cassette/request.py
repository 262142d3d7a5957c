"""A request as it is matched, which is also how it is kept: what an answer depends on, and nothing else.

* Method, path, and the query in order of its names.
* A JSON body as its value: members in any order, `1.0` as `1`, without members that say nothing (`null`, and
  `stream: false`), without those that change from run to run and not the answer (`VOLATILE`), without keys.
* A form as its parts, whatever its boundary; files, and other bodies that are no text, as their hash.

Headers are not matched: they say who asks, not what.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.http.multipart import boundary_of
from slotgate.gateway.testing.cassette.redaction import Redaction, secrets_in

__all__ = ["STATUS_PATHS", "VOLATILE", "RecordedRequest", "as_recorded", "canonical"]

VOLATILE = frozenset(
    {
        "client_request_id",
        "conversation_id",
        "metadata",
        "prompt_cache_key",
        "request_id",
        "safety_identifier",
        "session_id",
        "trace_id",
        "user",
        "user_id",
    }
)
"""Members of a JSON body, and fields of a form, that say who asks and not what."""
MAX_TEXT_BYTES = 65536
"""A longer field of a form, or body that is no JSON, is kept as its hash."""
STATUS_PATHS = ("/health", "/props", "/v1/models", "/slots")
"""Where gateways ask every other second how an upstream is."""
_parameter = re.compile(rb';\s*(name|filename)="((?:[^"\\]|\\.)*)"', re.IGNORECASE).findall


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    content: Mapping[str, Any] = field(default_factory=dict)
    """`{"json": …}`, `{"form": […]}`, `{"text": …}`, or `{"sha256": …, "bytes": …}`; empty without a body."""

    @property
    def target(self) -> str:
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def is_status(self) -> bool:
        """Whether it asks how the upstream is: recorded once at the start, and never missed."""
        return self.method == "GET" and self.path in STATUS_PATHS

    @property
    def key(self) -> str:
        """Ten hex digits: the same for requests that match, in every run."""
        return hashlib.sha256(canonical(self.facts()).encode()).hexdigest()[:10]

    def facts(self) -> dict[str, Any]:
        """As written into a file."""
        return {"method": self.method, "target": self.target, **self.content}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> RecordedRequest:
        """Raises `KeyError` and `TypeError` for what is no such thing."""
        path, _, query = str(facts["target"]).partition("?")
        content = {name: value for name, value in facts.items() if name not in ("method", "target")}
        return cls(str(facts["method"]), path, tuple(parse_qsl(query, keep_blank_values=True)), content)


def as_recorded(
    method: str, path: str, query: str, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> tuple[RecordedRequest, Redaction]:
    """The request as it is matched, and the knowledge of its secrets."""
    headers = list(headers)
    parameters = parse_qsl(query, keep_blank_values=True)
    content_type = next((value for name, value in headers if name.lower() == b"content-type"), b"")
    value = _parsed(body)
    presented = Redaction.of(headers, parameters)
    if isinstance(value, dict):
        presented = presented.knowing(secrets_in(value))
    content = _content(body, value, content_type, presented)
    kept = tuple(sorted(presented.parameters(parameters)))
    return RecordedRequest(method, path, kept, content), presented


def canonical(value: object) -> str:
    """Equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _parsed(body: bytes) -> Any:  # noqa: ANN401
    """The JSON value of a body; None where it is none (no body is `null`)."""
    try:
        return _plain_numbers(json.loads(body)) if body else None
    except (ValueError, RecursionError):
        return None


def _content(body: bytes, value: Any, content_type: bytes, redaction: Redaction) -> dict[str, Any]:  # noqa: ANN401
    if not body:
        return {}
    if isinstance(value, dict):
        return {"json": redaction.value(_telling(value))}
    if value is not None:
        return {"json": redaction.value(value)}
    parts = _parts(body, content_type)
    if parts is not None:
        return {"form": [_field(*part, redaction) for part in parts if part[0].get("name") not in VOLATILE]}
    return _text_or_hash(body, redaction)


def _telling(members: dict[str, Any]) -> dict[str, Any]:
    return {
        name: members[name]
        for name in sorted(members)
        if name not in VOLATILE and members[name] is not None and (name, members[name]) != ("stream", False)
    }


def _plain_numbers(value: Any) -> Any:  # noqa: ANN401
    """`1.0` and `1` are the same number in JSON; members come in order of their names."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain_numbers(item) for name, item in value.items()}
    return value


def _parts(body: bytes, content_type: bytes) -> list[tuple[dict[str, str], bytes]] | None:
    """The parts of a form with their names, whatever its boundary is; None where it is no form."""
    try:
        boundary = boundary_of(content_type)
    except ClientError:
        return None
    parts: list[tuple[dict[str, str], bytes]] = []
    for piece in (b"\r\n" + body).split(b"\r\n--" + boundary)[1:]:
        if piece.startswith(b"--"):
            return parts
        head, _, content = piece.partition(b"\r\n\r\n")
        names = {name.decode().lower(): value.decode(errors="replace") for name, value in _parameter(head)}
        parts.append((names, content))
    return None


def _field(names: dict[str, str], content: bytes, redaction: Redaction) -> dict[str, Any]:
    if "filename" in names:
        return {**names, **_hash(content)}
    [(name, value)] = redaction.value({names.get("name", ""): content.decode(errors="replace")}).items()
    return (
        {"name": name, "text": value} if len(content) <= MAX_TEXT_BYTES else {"name": name, **_hash(content)}
    )


def _text_or_hash(body: bytes, redaction: Redaction) -> dict[str, Any]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return _hash(body)
    return {"text": redaction.text(text)} if len(body) <= MAX_TEXT_BYTES else _hash(body)


def _hash(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
