"""Refuse requests that would make a backend fetch pictures, audio or video from elsewhere.

llama-server fetches what a content part names by URL: `image_url` (OpenAI), a `source` of the type `url`
(Anthropic), `input_image` (Responses), `input_audio` and `input_video` (their `url`, and their `data` too).
It does so with its own network access, so a client could reach services that only the backend's machine can
reach. So a location must hold the media itself (a `data:` URL or plain base64), unless its host is allowed.

Parsers of URLs differ about the host of an odd URL, and llama-server's takes what stands after the first `@`,
wherever that is. So a URL with a user, an `@`, a backslash or an IPv6 address is refused, whatever its host.

Tool calls and tool definitions are not looked at. They may hold URLs, and no server fetches these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slotgate.gateway.http.errors import ClientError

__all__ = ["AllowedMedia", "MediaSearch"]

ANY_HOST = "*"
_MEDIA = frozenset(
    {
        *("image_url", "audio_url", "video_url", "file_url", "file_data"),
        *("image", "audio", "video", "file", "input_image", "input_audio", "input_video", "input_file"),
        *("multimodal_data", "image_data"),
    }
)
"""Members that hold a location as text, or in an object, or a list of such."""
_IN_OBJECT = ("url", "data", "file_url", "file_data")
"""Members of a media object that hold a location. llama-server reads a URL also from `data`."""
_SOURCE = "source"
"""Anthropic's media object, whose `url` holds the location. Its `data` may be a text. A `source`
that is itself a text says where a search result is from, and is not fetched."""
_TOOL_INPUT = "input"
"""The arguments in Anthropic's `tool_use`."""
_OPAQUE = frozenset(
    {
        *("tools", "functions", "tool_choice", "response_format", "json_schema", "metadata"),
        *("chat_template_kwargs", "tool_calls", "function_call", "arguments", "input_schema", "parameters"),
    }
)
"""Members in which neither llama-server nor a chat template looks for media."""
_SPECIAL = _MEDIA | _OPAQUE | {_SOURCE, _TOOL_INPUT}
_DEFAULT_PORTS = {"http": 80, "https": 443}
_url = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)(?::(?P<port>[0-9]{1,5}))?(?:/[!-?A-\[\]-~]*)?"
).fullmatch
"""A URL that every parser reads alike: printable ASCII, no `@`, no backslash."""
_scheme = re.compile(r"[\x00-\x20]*[A-Za-z][A-Za-z0-9+.-]{0,30}:").match
"""Every URL begins like this. Base64 never does, because it has no colon."""
_MOST_SHOWN = 120


_CONTAINERS = (dict, list)
_Place = tuple[Any, "_Place | None", str | int]
"""A value, the place that it is in, and its name or index there."""


@dataclass(frozen=True, slots=True)
class AllowedMedia:
    """The hosts from which backends may fetch media.

    An entry is `host` or `host:port`, with `*.` before a domain for all hosts below it, or `*` for every host
    and port. Without a port, the default port of the scheme is meant.
    """

    hosts: tuple[str, ...] = ()

    def check(self, members: Mapping[str, Any]) -> None:
        """Raise `ClientError` if a request names a location that is not allowed. O(number of values)."""
        MediaSearch(self, members).go()

    def allows(self, location: str) -> bool:
        url = _url(location) if self.hosts else None
        if url is None:
            return False
        if ANY_HOST in self.hosts:
            return True
        host, default = url["host"].lower(), _DEFAULT_PORTS[url["scheme"]]
        port = int(url["port"] or default)
        names = [f"{host}:{port}", host] if port == default else [f"{host}:{port}"]
        return any(_matches(name, self.hosts) for name in names)


class MediaSearch:
    """Looks through the members of a request. A search of a big body can be done in two parts."""

    def __init__(self, allowed: AllowedMedia, members: Mapping[str, Any]) -> None:
        self._allowed = allowed
        self._left: list[_Place] = [(members, None, "")]

    def go(self, most: int | None = None) -> bool:
        """Look at no more than `most` values (None: all). Return False if some are left.

        Raises `ClientError` for a location that is not allowed.
        """
        left, seen = self._left, 0
        while left:
            place = left.pop()
            value = place[0]
            seen += 1 + len(value)
            if most is not None and seen > most:
                left.append(place)
                return False
            if isinstance(value, dict):
                self._object(value, place)
            else:
                self._list(value, place)
        return True

    def _list(self, value: list[Any], place: _Place) -> None:
        if place[2] in _MEDIA:
            for at, inner in enumerate(value):
                self._medium(inner, place, at)
        self._left += [(inner, place, at) for at, inner in enumerate(value) if isinstance(inner, _CONTAINERS)]

    def _object(self, value: dict[str, Any], place: _Place) -> None:
        for name, inner in value.items():
            if name in _SPECIAL:
                if name in _OPAQUE or (name == _TOOL_INPUT and _is_tool_use(value.get("type"))):
                    continue
                self._media(name, inner, place)
            if isinstance(inner, _CONTAINERS):
                self._left.append((inner, place, name))

    def _media(self, name: str, value: object, place: _Place) -> None:
        if name in _MEDIA:
            self._medium(value, place, name)
        elif name == _SOURCE and isinstance(value, dict):
            self._location(value.get("url"), (value, place, name), "url")

    def _medium(self, value: object, place: _Place, name: str | int) -> None:
        self._location(value, place, name)
        if isinstance(value, dict):
            for own in _IN_OBJECT:
                self._location(value.get(own), (value, place, name), own)

    def _location(self, text: object, place: _Place, name: str | int) -> None:
        if not isinstance(text, str) or _is_inline(text) or self._allowed.allows(text):
            return
        param = _path((text, place, name))
        message = (
            f"{param} names {_shown(text)!r}, which backends must not fetch here: send the media itself as a "
            "data: URL, or ask the operator to list its host in server.allowed_media_hosts"
        )
        raise ClientError("invalid_request", message, param=param)


def _path(place: _Place) -> str:
    """Return the path to a place, as `messages[0].content`."""
    parts: list[str] = []
    here: _Place | None = place
    while here is not None:
        _, before, name = here
        parts.append(f"[{name}]" if isinstance(name, int) else f".{_shown(name)}")
        here = before
    return _shown("".join(reversed(parts)).lstrip("."))


def _shown(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _is_tool_use(kind: object) -> bool:
    return isinstance(kind, str) and kind.endswith("tool_use")


def _is_inline(text: str) -> bool:
    return text[:5].lower() == "data:" or not _scheme(text)


def _matches(name: str, allowed: Iterable[str]) -> bool:
    return any(name == entry or (entry[:2] == "*." and name.endswith(entry[1:])) for entry in allowed)
