"""The two keys of `slotgate run`, kept in a file between its runs."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slotgate.gateway.auth.keys import PREFIX, new_key

__all__ = ["KeysError", "RunKeys", "load_or_make_keys", "state_dir"]


class KeysError(Exception):
    """The keys of `slotgate run` cannot be kept or read. The text names the file and the reason."""


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The keys of `slotgate run`: one for its clients, one for its operator."""

    client: str = field(repr=False)
    operator: str = field(repr=False)


def state_dir(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_STATE_HOME/slotgate`. A relative path in the variable is ignored (XDG Base Directory)."""
    base = Path(environ.get("XDG_STATE_HOME", ""))
    if base.is_absolute():
        return base / "slotgate"
    return Path(environ.get("HOME") or Path.home()) / ".local" / "state" / "slotgate"


def load_or_make_keys(directory: Path) -> RunKeys:
    """Return the keys kept in `directory`. The first call makes them; concurrent calls get the same keys.

    Raises `KeysError` if they cannot be kept, or if the file is damaged.
    """
    path = directory / "keys.json"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        if not path.exists():
            _keep(path, RunKeys(new_key(), new_key()))
        path.chmod(0o600)
        return _parsed(path, path.read_bytes())
    except OSError as failed:
        raise KeysError(f"cannot keep keys in {path}: {failed.strerror}") from failed


def _keep(path: Path, keys: RunKeys) -> None:
    """Write the file whole or not at all. Unlike a rename, a link does not replace an existing file."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump({"client": keys.client, "operator": keys.operator}, file)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first, and its keys are used
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


def _parsed(path: Path, content: bytes) -> RunKeys:
    try:
        kept = json.loads(content)
        keys = RunKeys(kept["client"], kept["operator"])
    except (ValueError, TypeError, LookupError) as damaged:
        raise KeysError(f"{path} is damaged; without it, new keys are made") from damaged
    if not all(isinstance(key, str) and key.startswith(PREFIX) for key in (keys.client, keys.operator)):
        raise KeysError(f"{path} has no keys in it; without it, new keys are made")
    return keys
