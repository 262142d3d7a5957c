"""The files of the operators' pages. They are read once, when the gateway starts, and kept in memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Final, Self

__all__ = ["PageFile", "PageFiles"]

_FRAME: Final = "frame.html"
_TITLES: Final = {"dashboard.html": "Dashboard", "chat.html": "Playground"}
_TYPES = {
    "css": b"text/css; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file as it is served."""

    content: bytes
    content_type: bytes
    etag: bytes
    """A hash of the content, so that browsers can keep the file until it changes."""

    @classmethod
    def of(cls, name: str, content: bytes) -> Self:
        etag = b'"%b"' % hashlib.sha256(content).hexdigest()[:20].encode()
        return cls(content, _TYPES[name.rpartition(".")[2]], etag)


class PageFiles:
    """All files of the package `slotgate.gateway.admin.pages`. Each page is put into the shared frame."""

    def __init__(self) -> None:
        written = {
            entry.name: entry.read_bytes()
            for entry in files("slotgate.gateway.admin.pages").iterdir()
            if entry.name.rpartition(".")[2] in _TYPES
        }
        frame = Template(written.pop(_FRAME).decode())
        for name, title in _TITLES.items():
            page = name.removesuffix(".html")
            written[name] = frame.substitute(title=title, page=page, content=written[name].decode()).encode()
        self._files = {name: PageFile.of(name, content) for name, content in written.items()}

    def __repr__(self) -> str:
        return f"<PageFiles of {len(self._files)} files>"

    def page(self, name: str) -> PageFile:
        """Return a page. Raises `KeyError` for an unknown name."""
        return self._files[name]

    def static(self, name: str) -> PageFile | None:
        """Return a script, style or image, or None for any other name. Pages have paths of their own."""
        return None if name.endswith(".html") else self._files.get(name)
