"""Counts of the work of Python code, from the interpreter's hooks. They are the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["counted"]


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Count the instructions of all frames that are entered inside the block, and the calls into C."""
    counts = {"opcode": 0, "c_call": 0}

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:  # noqa: ANN401
        if event == "opcode":
            counts["opcode"] += 1
        else:
            frame.f_trace_lines = False
            frame.f_trace_opcodes = True
        return trace

    def profile(_: FrameType, event: str, __: Any) -> None:  # noqa: ANN401
        if event == "c_call":
            counts["c_call"] += 1

    before = sys.gettrace(), sys.getprofile()
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        yield counts
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
