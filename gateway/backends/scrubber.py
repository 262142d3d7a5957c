"""Removes paths of model files and the gateway's own key from a backend's JSON."""

from __future__ import annotations

import re
from collections.abc import Callable

import orjson

__all__ = ["scrubber"]

_MODEL_FILE = b".gguf"
_word = re.compile(rb"[^\s\"']+")


def scrubber(model_path: str | None, api_key: str | None, public_name: str) -> Callable[[bytes], bytes]:
    """Return a function for JSON texts that writes the public name in place of a model's path.

    It also removes the API key, because a proxy in front of the backend may repeat what it was sent.
    """
    path = orjson.dumps(model_path or "")[1:-1]
    name = orjson.dumps(public_name)[1:-1]
    key = orjson.dumps(api_key or "")[1:-1]

    def scrub(text: bytes) -> bytes:
        if key:
            text = text.replace(key, b"***")
        if path and path != name:
            text = text.replace(path, name)
        if _MODEL_FILE not in text:
            return text
        return _word.sub(lambda word: _without_path(word[0], name), text)

    return scrub


def _without_path(word: bytes, name: bytes) -> bytes:
    start, end = word.find(b"/"), word.rfind(_MODEL_FILE)
    return word if not 0 <= start < end else word[:start] + name + word[end + len(_MODEL_FILE) :]
