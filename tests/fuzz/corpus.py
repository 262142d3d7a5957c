"""The inputs in `tests/corpus/`: one folder for each target, one file for each input."""

from __future__ import annotations

import hashlib
from pathlib import Path

CORPUS = Path(__file__).resolve().parent.parent / "corpus"


def inputs(target: str) -> list[bytes]:
    """Return the inputs of a target, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


def keep(target: str, data: bytes) -> Path:
    """Write an input to the corpus, named by its hash, and return its path."""
    path = CORPUS / target / hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
