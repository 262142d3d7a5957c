"""What the whole suite shares. It lives in `tests.support.fixtures`."""

import gc

from hypothesis import settings

from tests.support.fixtures import (
    anyio_backend,
    cold_llama,
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
    "no_stray_tasks",
    "nothing_left",
    "postgres",
    "pytest_collection_modifyitems",
    "run_llama",
    "small_model",
    "tiny_llama",
    "tiny_model",
]

settings.register_profile("suite", deadline=None)  # how long one example takes is the machine's business
settings.load_profile("suite")


def pytest_collection_finish() -> None:
    """The hundred thousands of objects that pytest keeps need not be looked at by collections in a test."""
    gc.collect()
    gc.freeze()
