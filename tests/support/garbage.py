"""Finds objects of the gateway that only the garbage collector frees.

An object that is part of a reference cycle lives until the next run of the collector, and whatever it refers
to lives as long: a request's body of many megabytes among it.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import slotgate.gateway

__all__ = ["cycles", "without_collector"]

_ROOT = str(Path(slotgate.gateway.__file__).resolve().parent.parent)
_TESTING = str(Path(_ROOT, "gateway", "testing"))
_LEAST_BYTES = 2000
"""A body of this size is looked for, whatever refers to it."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Run the block without the garbage collector, beginning with no garbage."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def cycles() -> list[str]:
    """Return the gateway's objects, frames and big byte strings that are in cycles, and free all cycles."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return sorted({name for thing in gc.garbage if (name := _named(thing))})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()


def _named(thing: object) -> str:
    """Return a name for an object of the gateway; empty for any other object."""
    if isinstance(thing, types.FrameType):
        file = str(Path(thing.f_code.co_filename).resolve())
        ours = file.startswith(_ROOT) and not file.startswith((_TESTING, str(Path(_ROOT, "tests"))))
        return (
            f"frame {thing.f_code.co_qualname} at line {thing.f_lineno}"
            if ours and ".venv" not in file
            else ""
        )
    kind = type(thing)
    module = str(getattr(kind, "__module__", ""))
    if module.startswith("slotgate.") and not module.startswith("slotgate.gateway.testing"):
        return f"{module}.{kind.__qualname__}"
    for referent in gc.get_referents(thing):
        if isinstance(referent, bytes | bytearray) and len(referent) >= _LEAST_BYTES:
            return f"{kind.__qualname__} that refers to {len(referent)} bytes"
    return ""
