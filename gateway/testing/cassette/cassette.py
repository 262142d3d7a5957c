"""A folder of recordings with one file an exchange. Recordings are found by their request.

    v1-chat-completions-3f2a9c1b04.json       the path, and a hash of the compared parts of the request
    v1-chat-completions-3f2a9c1b04-2.json     the second recording of an equal request

A request that is recorded again gets the same file name, so a diff of two recordings shows what changed. A
file exists whole or not at all, and only its owner may read it. Recording a request again replaces its files
of earlier runs; files of other requests stay.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from slotgate.gateway.testing.cassette.document import read_exchange, written
from slotgate.gateway.testing.cassette.exchange import RecordedExchange
from slotgate.gateway.testing.cassette.request import RecordedRequest

__all__ = ["Cassette", "CassetteError", "CassetteFolder", "RecordingFile"]

_not_in_names = re.compile(r"[^a-z0-9]+")
_is_name = re.compile(r"(?P<stem>.+?)(?:-(?P<number>\d{1,6}))?\.json").fullmatch
MAX_SLUG = 60


class CassetteError(Exception):
    """A cassette cannot be read or written. The text names the file and the reason."""


class Cassette:
    """The recordings of each request, in the order in which they were made."""

    def __init__(self, exchanges: Iterable[RecordedExchange]) -> None:
        self._by_key: dict[str, list[RecordedExchange]] = {}
        for exchange in exchanges:
            self._by_key.setdefault(exchange.request.key, []).append(exchange)

    def __repr__(self) -> str:
        return f"<Cassette {len(self)} recordings of {len(self._by_key)} requests>"

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    @classmethod
    def load(cls, folder: Path) -> Cassette:
        """Read a folder. Raises `CassetteError` if it has no recordings, or names all invalid files."""
        names = sorted(path.name for path in folder.glob("*.json"))
        if not names:
            raise CassetteError(f"there are no recordings in {folder}")
        exchanges, faults = [], []
        for name in sorted(names, key=_order):
            try:
                exchanges.append(_read(folder / name))
            except CassetteError as fault:
                faults.append(str(fault))
        if faults:
            raise CassetteError("\n".join(faults))
        return cls(exchanges)

    @property
    def exchanges(self) -> list[RecordedExchange]:
        return [exchange for exchanges in self._by_key.values() for exchange in exchanges]

    def of(self, request: RecordedRequest) -> list[RecordedExchange]:
        return self._by_key.get(request.key, [])


class RecordingFile:
    """The file of an exchange. It is named at the request, so numbers follow the order of requests."""

    __slots__ = ("key", "name")

    def __init__(self, key: str, name: str) -> None:
        self.key = key
        self.name = name

    def __repr__(self) -> str:
        return f"<RecordingFile {self.name}>"


class CassetteFolder:
    """A folder that is being recorded into."""

    def __init__(self, folder: Path) -> None:
        """Raises `CassetteError` if the folder cannot be written to."""
        self._folder = folder
        self._taken: dict[str, int] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            earlier = sorted(path.name for path in folder.glob("*.json"))
        except OSError as error:
            raise CassetteError(f"cannot record into {folder}: {error.strerror}") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CassetteError(f"cannot record into {folder}: it is not writable")
        self._earlier = set(earlier)

    def __repr__(self) -> str:
        return f"<CassetteFolder {self._folder}, {sum(self._taken.values())} files named>"

    def new_file(self, request: RecordedRequest) -> RecordingFile:
        """Return the next file for this request."""
        key = request.key
        number = self._taken[key] = self._taken.get(key, 0) + 1
        stem = f"{_slug(request)}-{key}"
        return RecordingFile(key, f"{stem}.json" if number == 1 else f"{stem}-{number}.json")

    def keep(self, file: RecordingFile, exchange: RecordedExchange) -> None:
        """Write the file. Call it once a file, from any thread; it blocks. Raises `CassetteError`."""
        path = self._folder / file.name
        unfinished = path.with_suffix(".unfinished")
        try:
            _write_private(unfinished, written(exchange))
            unfinished.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise CassetteError(f"cannot write {path}: {error.strerror}") from error
        self._forget_earlier(file)

    def _forget_earlier(self, file: RecordingFile) -> None:
        """Remove files of an earlier run whose number is higher than the requests of this run."""
        for name in [name for name in self._earlier if f"-{file.key}" in name]:
            self._earlier.discard(name)
            if _order(name)[1] > self._taken[file.key]:
                (self._folder / name).unlink(missing_ok=True)


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, because it holds a prompt. Raises `OSError`."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _read(path: Path) -> RecordedExchange:
    try:
        return read_exchange(path.read_bytes(), path.name)
    except OSError as error:
        raise CassetteError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CassetteError(f"{path}: {error}") from error


def _order(name: str) -> tuple[str, int]:
    """Return a sort key: the request, then the number. Hashes are too long to be taken for numbers."""
    found = _is_name(name)
    return (found["stem"], int(found["number"] or 1)) if found else (name, 1)


def _slug(request: RecordedRequest) -> str:
    words = request.path if request.method == "POST" else f"{request.method} {request.path}"
    return _not_in_names.sub("-", words.lower()).strip("-")[:MAX_SLUG].strip("-") or "root"
