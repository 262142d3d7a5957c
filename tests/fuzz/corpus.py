"""The inputs in `tests/corpus/`: one folder for each target, one file for each input."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_FAILED = "failed-"
"""The beginning of the name of an input that has failed once."""
_STAYING = (_FAILED, "seed-")
"""These inputs stay. A seed is written by a person, and can matter although it reaches no line of its own."""
CORPUS = Path(__file__).resolve().parent.parent / "corpus"


def inputs(target: str) -> list[bytes]:
    """Return the inputs of a target, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


def keep(target: str, data: bytes, *, failed: bool = False) -> Path:
    """Write an input to the corpus, named by its hash, and return its path."""
    name = hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]
    path = CORPUS / target / (_FAILED + name if failed else name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def replace(target: str, better: Iterable[bytes]) -> None:
    """Replace the inputs of a target that need not stay."""
    for path in (CORPUS / target).iterdir():
        if not path.name.startswith(_STAYING):
            path.unlink()
    for data in better:
        keep(target, data)
