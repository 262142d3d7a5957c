"""A folder of recordings, one file an exchange, found by the request.

    v1-chat-completions-3f2a9c1b04.json       the path, and what the request is matched by
    v1-chat-completions-3f2a9c1b04-2.json     the same request asked again

So a request that is recorded once more lands in the same file, and whoever compares two recordings sees what
has changed. A file is there whole or not at all. What a request was answered in an earlier run goes when the
request is recorded again; what is not asked again stays.
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
    """A cassette cannot be read or written; says which file and why."""


class Cassette:
    """Recordings by the request that they answer; of one request in the order in which they were made."""

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
        """Raises `CassetteError` for a folder that holds none, and for all files together that are none."""
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
    """Where one exchange will be kept; decided as its request comes: names follow the order of asking."""

    __slots__ = ("key", "name")

    def __init__(self, key: str, name: str) -> None:
        self.key = key
        self.name = name

    def __repr__(self) -> str:
        return f"<RecordingFile {self.name}>"


class CassetteFolder:
    """The folder while it is recorded into."""

    def __init__(self, folder: Path) -> None:
        """Raises `CassetteError` where nothing can be written."""
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
        key = request.key
        number = self._taken[key] = self._taken.get(key, 0) + 1
        stem = f"{_slug(request)}-{key}"
        return RecordingFile(key, f"{stem}.json" if number == 1 else f"{stem}-{number}.json")

    def keep(self, file: RecordingFile, exchange: RecordedExchange) -> None:
        """Write the file. Blocks; may be called from any thread, once a place. Raises `CassetteError`."""
        path = self._folder / file.name
        unfinished = path.with_suffix(".unfinished")
        try:
            unfinished.write_bytes(written(exchange))
            unfinished.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise CassetteError(f"cannot write {path}: {error.strerror}") from error
        self._forget_earlier(file)

    def _forget_earlier(self, file: RecordingFile) -> None:
        """What an earlier run was answered to this request more often than it has been asked in this one."""
        for name in [name for name in self._earlier if f"-{file.key}" in name]:
            self._earlier.discard(name)
            if _order(name)[1] > self._taken[file.key]:
                (self._folder / name).unlink(missing_ok=True)


def _read(path: Path) -> RecordedExchange:
    try:
        return read_exchange(path.read_bytes(), path.name)
    except OSError as error:
        raise CassetteError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CassetteError(f"{path}: {error}") from error


def _order(name: str) -> tuple[str, int]:
    """By the request, then by number: `-10` after `-2`. A hash is never taken for a number: it is longer."""
    found = _is_name(name)
    return (found["stem"], int(found["number"] or 1)) if found else (name, 1)


def _slug(request: RecordedRequest) -> str:
    words = request.path if request.method == "POST" else f"{request.method} {request.path}"
    return _not_in_names.sub("-", words.lower()).strip("-")[:MAX_SLUG].strip("-") or "root"
