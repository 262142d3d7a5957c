"""What the whole suite shares. It lives in `tests.support.fixtures`."""

from __future__ import annotations

import gc
import os

from hypothesis import settings

from tests.support.fixtures import (
    anyio_backend,
    cold_llama,
    illegal_transitions,
    no_stray_tasks,
    nothing_left,
    postgres,
    pytest_collection_modifyitems,
    run_llama,
    small_model,
    tiny_llama,
    tiny_model,
)

__all__ = [
    "anyio_backend",
    "cold_llama",
    "illegal_transitions",
    "no_stray_tasks",
    "nothing_left",
    "postgres",
    "pytest_collection_modifyitems",
    "run_llama",
    "small_model",
    "tiny_llama",
    "tiny_model",
]

# The workers of pytest-xdist inherit COLUMNS=80 and LINES=24, because readline sets them in the process that
# starts the workers. A program that a test runs on a terminal of another size would believe them.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

settings.register_profile("suite", deadline=None)  # how long one example takes is the machine's business
settings.load_profile("suite")


def pytest_collection_finish() -> None:
    """The hundred thousands of objects that pytest keeps need not be looked at by collections in a test."""
    gc.collect()
    gc.freeze()
