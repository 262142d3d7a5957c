"""Tests that are marked `quiet` run while no other worker of pytest-xdist runs a test.

They measure times, and on a machine with as many workers as cores they would measure the other tests. Each
test holds a shared lock on a file of the run, and a quiet test an exclusive one. Both pass a gate first:
otherwise the other workers would hand the shared lock to each other, and a quiet test would wait until the
end.

A quiet test waits for the tests that run at that moment, which costs the other workers as much time. So the
quiet tests come first, and a worker keeps its lock from one quiet test to the next.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

__all__ = ["QuietTests"]


class QuietTests:
    """A plugin of pytest. Each process of a run needs an object of its own."""

    def __init__(self) -> None:
        self._kept: ExitStack | None = None
        """The exclusive lock, kept from one quiet test to the next."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: not _is_quiet(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
        if run is None:
            return (yield)
        lock, self._kept = self._kept, None
        if lock is None:
            lock = ExitStack()
            file = Path(tempfile.gettempdir(), f"slotgate-tests-{run}")
            lock.enter_context(_locked(file, exclusive=_is_quiet(item)))
        with lock:
            result = yield
            if _is_quiet(item) and nextitem is not None and _is_quiet(nextitem):
                self._kept = lock.pop_all()
            return result


def _is_quiet(item: pytest.Item) -> bool:
    return item.get_closest_marker("quiet") is not None


@contextmanager
def _locked(file: Path, *, exclusive: bool) -> Iterator[None]:
    with open(file.with_suffix(".gate"), "w") as gate, open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
