"""A file that tells whoever waits for it that a server is up, and where.

It appears whole or not at all, readable for its owner only (it may hold a key), and goes with the server: one
that is there is never the one of an earlier run.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ReadyFile"]


class ReadyFile:
    """`with ReadyFile(path) as ready:` removes what is there; `ready.write({...})` when it is time."""

    def __init__(self, path: Path | None) -> None:
        """None: nobody waits for a file."""
        self._path = path

    def __repr__(self) -> str:
        return f"<ReadyFile {self._path}>"

    def __enter__(self) -> ReadyFile:
        """Raises OSError."""
        self._remove()
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def write(self, content: Mapping[str, object]) -> None:
        """Raises OSError."""
        if self._path is None:
            return
        descriptor, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(content, file)
            os.replace(temporary, self._path)
        except OSError:
            os.unlink(temporary)
            raise

    def _remove(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
