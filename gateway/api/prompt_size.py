"""The size of a prompt as far as its bytes tell: text, pictures, audio.

Base64 is not text. A picture of 1.5 MB is 2 MB of base64 and becomes some hundred tokens, so payloads are
taken out of the text and counted apart. Payloads stand in `data:` URLs (OpenAI's `image_url`, `input_image`
and `file_data`), in objects with `data` and a media type or a format (Anthropic's `source`, OpenAI's
`input_audio`, results of tools), and in llama.cpp's `multimodal_data` and `image_data`.

How many tokens that is depends on the model: `backends/prompt_sizes.py` learns it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PromptSize", "measured"]

_MOST_NODES = 50_000
"""Values of a body that are looked at. What stands behind them counts as text."""
_LEAST_PAYLOAD_BYTES = 64
_SIGNS = (b"data:", b'"data"', b"file_data", b"multimodal_data", b"image_url")
"""A body with none of these holds no payload, and is not walked."""
_URL_MEMBERS = ("url", "image_url", "file_data", "file_url", "video_url", "audio_url")
_MOST_HEAD = 128
"""Characters of a data URL in which its media type must end."""
_NO_BASE64 = re.compile(r"[^A-Za-z0-9+/=_\r\n-]")
_WINDOW = 1024 * 1024
_PAYLOAD_LISTS = ("multimodal_data", "image_data")


@dataclass(frozen=True, slots=True)
class PromptSize:
    text_bytes: int
    """UTF-8 bytes of everything that is no payload, the JSON around it included."""
    pictures: int = 0
    """Pictures and other files, each of which becomes a bounded number of tokens."""
    audio_bytes: int = 0
    """Decoded bytes of audio."""


def measured(members: Mapping[str, Any], body: bytes) -> PromptSize:
    """The size of the prompt in a JSON body that parsed to `members`. O(size of the body)."""
    if not any(sign in body for sign in _SIGNS):
        return PromptSize(len(body))
    walk = _Walk(slashes_escaped=b"\\/" in body)
    walk.look_at(members)
    return PromptSize(max(0, len(body) - walk.payload_bytes), walk.pictures, walk.audio_bytes)


class _Walk:
    def __init__(self, *, slashes_escaped: bool) -> None:
        """`slashes_escaped`: the body has `\\/` for each slash, as PHP writes it. Base64 has many slashes."""
        self._slashes_escaped = slashes_escaped
        self.payload_bytes = 0
        self.pictures = 0
        self.audio_bytes = 0

    def look_at(self, members: Mapping[str, Any]) -> None:
        left: list[object] = [members]
        for _ in range(_MOST_NODES):
            if not left:
                return
            value = left.pop()
            if isinstance(value, dict):
                self._object(value, left)
            elif isinstance(value, list):
                left += value[:_MOST_NODES]

    def _object(self, value: dict[str, Any], left: list[object]) -> None:
        if _is_remote_picture(value):
            self.pictures += 1
            return
        data = value.get("data")
        described = value.get("media_type") or value.get("mimeType") or value.get("format")
        if isinstance(data, str) and (described or value.get("type") == "base64") and _is_payload(data):
            self._payload(data, str(described or ""))
        for name, inner in value.items():
            if name in _PAYLOAD_LISTS and isinstance(inner, list):
                for entry in inner:
                    payload = entry.get("data") if isinstance(entry, dict) else entry
                    if isinstance(payload, str):
                        self._payload(payload, "image")
            elif isinstance(inner, str):
                if name in _URL_MEMBERS and _is_data_url(inner):
                    self._payload(inner, inner[5:40])
                elif name == "file_data" and _is_base64(inner):
                    self._payload(inner, "")
            elif isinstance(inner, dict | list):
                left.append(inner)

    def _payload(self, text: str, described: str) -> None:
        if len(text) < _LEAST_PAYLOAD_BYTES:
            return
        self.payload_bytes += len(text) + (text.count("/") if self._slashes_escaped else 0)
        if described.startswith(("audio", "wav", "mp3", "flac", "ogg")):
            self.audio_bytes += len(text) * 3 // 4
        else:
            self.pictures += 1


def _is_base64(text: str, start: int = 0) -> bool:
    """Look at the text in windows: one search over all of it would hold the interpreter lock for long."""
    starts = range(start, len(text), _WINDOW)
    return not any(_NO_BASE64.search(text, at, at + _WINDOW) for at in starts)


def _is_payload(text: str) -> bool:
    return _is_data_url(text) if text.startswith("data:") else _is_base64(text)


def _is_data_url(text: str) -> bool:
    """A URL with its payload in base64, as `data:image/png;base64,iVBORw0K` (RFC 2397), and no other text.

    A text that only begins with `data:` must count as text: an estimate that is too small lets requests into
    a shared context that cannot hold them.
    """
    if not text.startswith("data:"):
        return False
    head, comma, _ = text[:_MOST_HEAD].partition(";base64,")
    return bool(comma) and " " not in head and "\n" not in head and _is_base64(text, len(head) + 8)


def _is_remote_picture(value: dict[str, Any]) -> bool:
    """A picture that the backend would fetch itself: OpenAI's `image_url`, as an object or as a text."""
    named = value.get("image_url")
    url = named.get("url") if isinstance(named, dict) else named
    return isinstance(url, str) and url.startswith(("http://", "https://"))
