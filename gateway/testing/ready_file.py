"""A file that tells other programs that a server is ready, and its address.

The file appears whole or not at all. Only its owner may read it, because it may hold a key. It is removed at
the start and at the end, so a file that exists never belongs to an earlier run.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ReadyFile"]


class ReadyFile:
    """A ready file.

    Write it in `with ReadyFile(path) as ready:` by `ready.write({...})`, when the server is ready.
    """

    def __init__(self, path: Path | None) -> None:
        """With None, `write` does nothing."""
        self._path = path

    def __repr__(self) -> str:
        return f"<ReadyFile {self._path}>"

    def __enter__(self) -> ReadyFile:
        """Remove the file of an earlier run. Raises OSError."""
        self._remove()
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def write(self, content: Mapping[str, object]) -> None:
        """Write the file. Raises OSError."""
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
