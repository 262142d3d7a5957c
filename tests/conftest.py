"""Fixtures and hooks of the whole suite, which are defined in `tests.support`."""

from __future__ import annotations

import gc
import os

import pytest
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
from tests.support.quiet import QuietTests
from tests.support.speed import pytest_runtest_call, pytest_terminal_summary

__all__ = [
    "anyio_backend",
    "cold_llama",
    "illegal_transitions",
    "no_stray_tasks",
    "nothing_left",
    "postgres",
    "pytest_collection_modifyitems",
    "pytest_runtest_call",
    "pytest_terminal_summary",
    "run_llama",
    "small_model",
    "tiny_llama",
    "tiny_model",
]

# The workers of pytest-xdist inherit COLUMNS=80 and LINES=24, because readline sets them in the process that
# starts the workers. A program that a test runs on a terminal of another size would believe them.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

settings.register_profile("suite", deadline=None)  # one example may take long on a busy machine
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(QuietTests())


def pytest_collection_finish() -> None:
    """Exempt the hundreds of thousands of objects that pytest keeps from garbage collection.

    A collection during a test would look at all of them, which takes long enough to disturb a measurement.
    """
    gc.collect()
    gc.freeze()
