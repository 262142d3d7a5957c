"""Fixtures of all tests: the event loop, leak checks, and the real llama-server.

A test that uses the real program is marked `real` and `slow` by its fixtures. Where a wheel of the program
exists, the test fails if it is not installed; elsewhere the test is skipped.
"""

from __future__ import annotations

import inspect
import platform
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from slotgate.gateway.backends.backend import Backend, report_illegal_transition
from slotgate.gateway.backends.state import IllegalBackendTransitionError
from tests.support.leaks import no_children_left, no_tasks_left
from tests.support.llama import MissingPartError, RealLlama, smollm2
from tests.support.tiny_model import write_tiny_model
from tests.support.usage import PostgresServer, postgres_programs, postgres_server

REAL_FIXTURES = {"cold_llama", "tiny_llama", "run_llama", "small_model"}
SLOW_FIXTURES = {"browser", "own_postgres", "postgres"}

RunLlama = Callable[[RealLlama], RealLlama]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a real llama-server or another program that takes long to start."""
    for item in items:
        used = set(item.fixturenames) if isinstance(item, pytest.Function) else set()
        if REAL_FIXTURES & used:
            item.add_marker(pytest.mark.real)
        if (REAL_FIXTURES | SLOW_FIXTURES) & used:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run async tests on the event loop that the gateway uses."""
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail tests that leave child processes, and async tests that leave tasks."""
    with no_children_left():
        if inspect.iscoroutinefunction(request.function):
            request.getfixturevalue("no_stray_tasks")
        yield


@pytest.fixture(autouse=True)
def illegal_transitions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Fail if a backend made a transition that its table forbids; the gateway itself only logs it."""
    found: list[str] = []

    def report(backend: Backend, error: IllegalBackendTransitionError) -> None:
        found.append(f"{backend.name}: {error}")
        report_illegal_transition(backend, error)

    monkeypatch.setattr("slotgate.gateway.backends.backend.report_illegal_transition", report)
    yield found
    assert found == []


@pytest.fixture
async def no_stray_tasks() -> AsyncIterator[None]:
    async with no_tasks_left():
        yield


@pytest.fixture(autouse=True)
def quick_probes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for the slots of a scripted llama-server soon after a request has ended.

    The waits in `admission.quarantine` are there for habits of the real llama-server that the scripted one
    does not have. Tests of the real one keep them. tests/admission tests the waits themselves.
    """
    if request.node.get_closest_marker("real") is None:
        monkeypatch.setattr("slotgate.admission.quarantine.SPACING_S", 0.2)
        monkeypatch.setattr("slotgate.admission.quarantine.UNSTARTED_S", 0.1)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with thousands of tokens a second that never ends by itself."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_tiny_model(path)
    return path


@pytest.fixture(scope="session")
def small_model() -> Path:
    """A model that writes sentences, at about 100 tokens a second."""
    need_the_wheel()
    try:
        return smollm2()
    except MissingPartError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def tiny_llama(tiny_model: Path) -> Iterator[RealLlama]:
    """A llama-server for the whole run, with 4 slots of 4,096 tokens."""
    need_the_wheel()
    with RealLlama(tiny_model) as llama:
        yield llama


@pytest.fixture(scope="session")
def cold_llama(tiny_model: Path) -> Iterator[RealLlama]:
    """A llama-server that reads every prompt from its beginning, so greedy answers are always the same.

    The rest of an earlier prompt in a slot would change the last digits of the computation.
    """
    need_the_wheel()
    with RealLlama(tiny_model, args=("--no-cache-prompt",)) as llama:
        yield llama


@pytest.fixture
def run_llama() -> Iterator[RunLlama]:
    """Start a llama-server for one test: `llama = run_llama(RealLlama(tiny_model, slots=1))`."""
    need_the_wheel()
    with ExitStack() as running:
        yield running.enter_context


def need_the_wheel() -> None:
    """Skip the test where the wheel of llama-server does not exist."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("there is no llama-server wheel for this platform")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole run."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with postgres_server(programs) as server:
        yield server
