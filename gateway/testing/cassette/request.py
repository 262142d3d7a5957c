"""A request as it is compared and kept: the parts that the answer depends on.

* The method, the path, and the query sorted by names.
* A JSON body as its value: the order of members does not matter, and `1.0` equals `1`. Members without
  effect (`null`, and `stream: false`), members that change from run to run (`VOLATILE`) and keys are left
  out.
* A form as its parts, without its boundary. Files, and other bodies that are not text, as their hash.

Headers are not compared, because they identify the client and not the question.
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
"""Members of a JSON body, and fields of a form, that identify the client and not the question."""
MAX_TEXT_BYTES = 65536
"""A longer form field, or a longer body that is not JSON, is kept as its hash."""
STATUS_PATHS = ("/health", "/props", "/v1/models", "/slots")
"""The paths that gateways poll for the status of an upstream."""
_parameter = re.compile(rb';\s*(name|filename)="((?:[^"\\]|\\.)*)"', re.IGNORECASE).findall


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it is compared."""

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
        """True for a status path. These are recorded once at the start, and never count as misses."""
        return self.method == "GET" and self.path in STATUS_PATHS

    @property
    def key(self) -> str:
        """Ten hex digits that are equal for equal requests, in every run."""
        return hashlib.sha256(canonical(self.facts()).encode()).hexdigest()[:10]

    def facts(self) -> dict[str, Any]:
        """Return the members that the file of a recording has for the request."""
        return {"method": self.method, "target": self.target, **self.content}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> RecordedRequest:
        """Build a request from these members. Raises `KeyError` and `TypeError` if they are not valid."""
        path, _, query = str(facts["target"]).partition("?")
        content = {name: value for name, value in facts.items() if name not in ("method", "target")}
        return cls(str(facts["method"]), path, tuple(parse_qsl(query, keep_blank_values=True)), content)


def as_recorded(
    method: str, path: str, query: str, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> tuple[RecordedRequest, Redaction]:
    """Return the request as it is compared, and the redaction of its secrets."""
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
    """Return a text that is equal for equal JSON values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _parsed(body: bytes) -> Any:  # noqa: ANN401
    """Return the JSON value of a body, or None if the body is not JSON or is `null`."""
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
    """Return the value with whole floats as integers, because `1.0` and `1` are equal in JSON."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_plain_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain_numbers(item) for name, item in value.items()}
    return value


def _parts(body: bytes, content_type: bytes) -> list[tuple[dict[str, str], bytes]] | None:
    """Return the parts of a form with their names, or None if the body is not a form."""
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
