"""A backend: its state as facts change, and the calls of its observers. On virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import structlog

from slotgate.gateway.backends.backend import FAILURE_PATIENCE_S, Backend, BackendState
from slotgate.gateway.backends.circuit_breaker import TRIPS_AFTER
from slotgate.gateway.backends.state import LastHealth, ProcessState
from tests.support.virtual_time import run_virtual

URL = "http://127.0.0.1:1"


def with_backend(work: Callable[[Backend], None], **options: Any) -> None:  # noqa: ANN401
    async def course() -> None:
        backend = Backend("gpu", URL, api_key=None, slots=2, **options)
        try:
            work(backend)
        finally:
            await backend.aclose()

    run_virtual(course())


def go_through(backend: Backend, *states: ProcessState) -> None:
    for state in states:
        backend.process_changed(state, url=URL)


def test_only_a_ready_backend_admits() -> None:
    def work(backend: Backend) -> None:
        admitting = {}
        for health in (LastHealth.LOADING, LastHealth.GOOD, LastHealth.STREAMING, LastHealth.MISSED):
            backend.observe(health)
            admitting[health] = backend.pool.admitting
        assert admitting == {health: health is LastHealth.GOOD for health in admitting}

    with_backend(work)


def test_a_drained_backend_takes_the_state_that_was_observed_meanwhile() -> None:
    def work(backend: Backend) -> None:
        backend.observe(LastHealth.GOOD)
        backend.set_drained(True)
        seen = [backend.state]
        assert backend.explanation == "drained by an operator"
        backend.observe(LastHealth.LOADING)
        seen.append(backend.state)
        backend.set_drained(False)
        seen.append(backend.state)
        assert seen == [BackendState.DRAINED, BackendState.DRAINED, BackendState.LOADING]

    with_backend(work)


def test_requests_wait_for_a_process_that_is_about_to_stop() -> None:
    def work(backend: Backend) -> None:
        go_through(backend, ProcessState.READY)
        backend.observe(LastHealth.GOOD)
        backend.set_leaving(True)
        assert backend.state is BackendState.LEAVING
        assert not backend.is_unavailable(FAILURE_PATIENCE_S * 2)

    with_backend(work)


def test_a_given_up_process_is_unavailable_at_once_and_a_failed_backend_after_a_while() -> None:
    def work(backend: Backend) -> None:
        backend.observe(LastHealth.MISSED)
        assert [backend.is_unavailable(now) for now in (0.0, FAILURE_PATIENCE_S)] == [False, True]
        go_through(backend, ProcessState.BACKOFF, ProcessState.GIVEN_UP)
        assert backend.is_unavailable(0.0)

    with_backend(work)


@pytest.mark.parametrize("on_request", [False, True])
def test_an_unloaded_backend_can_serve_if_a_request_loads_it(*, on_request: bool) -> None:
    def work(backend: Backend) -> None:
        go_through(backend, ProcessState.STOPPED)
        assert (backend.state, backend.can_serve) == (BackendState.UNLOADED, on_request)
        backend.set_drained(True)
        assert (backend.state, backend.can_serve) == (BackendState.STOPPED, False)

    with_backend(work, loads_on_request=on_request)


def test_timeouts_in_a_row_open_the_circuit_although_health_is_good() -> None:
    def work(backend: Backend) -> None:
        backend.observe(LastHealth.GOOD)
        for _ in range(TRIPS_AFTER - 1):
            backend.silent()
        assert backend.state is BackendState.READY
        backend.silent()
        backend.observe(LastHealth.GOOD)
        assert (backend.state, backend.pool.admitting) == (BackendState.SILENT, False)
        assert backend.explanation == "3 requests in a row had no event in time"
        backend.answered()
        assert (backend.state, backend.explanation) == (BackendState.READY, "")

    with_backend(work)


def test_a_failed_backend_stays_failed_since_its_first_failure() -> None:
    async def course() -> float:
        backend = Backend("gpu", URL, api_key=None, slots=2)
        backend.observe(LastHealth.MISSED)
        first = backend.since
        for _ in range(TRIPS_AFTER):
            backend.silent()
        assert backend.state is BackendState.SILENT
        await backend.aclose()
        return backend.since - first

    assert run_virtual(course()) == 0.0


def test_a_process_that_starts_while_its_circuit_was_open_is_starting() -> None:
    def work(backend: Backend) -> None:
        go_through(backend, ProcessState.READY)
        for _ in range(TRIPS_AFTER):
            backend.silent()
        go_through(backend, ProcessState.BACKOFF)
        assert backend.state is BackendState.STARTING

    with_backend(work)


def test_all_observers_hear_a_change_in_order() -> None:
    heard: list[str] = []

    def work(backend: Backend) -> None:
        backend.on_change.append(lambda _: heard.append("second"))
        backend.observe(LastHealth.GOOD)
        assert heard == ["first", "second"]
        backend.observe(LastHealth.GOOD)
        assert heard == ["first", "second"]

    with_backend(work, on_change=[lambda _: heard.append("first")])


def test_observers_hear_a_change_of_the_shared_context_alone() -> None:
    """A reload may change only the setting that says whether the context is shared."""

    def work(backend: Backend) -> None:
        backend.resize(2)
        seen: list[tuple[int, int]] = []
        backend.on_change.append(lambda _: seen.append((backend.pool.total, backend.pool.context)))
        backend.n_ctx = 1024
        for unified in (False, True, True, False):
            backend.context_sources.setting = unified
            backend.resize(2)
        assert seen == [(2, 1024), (2, 0)]

    with_backend(work)


def test_an_illegal_transition_is_logged_and_the_backend_goes_on(illegal_transitions: list[str]) -> None:
    def work(backend: Backend) -> None:
        go_through(backend, ProcessState.STOPPED)
        with structlog.testing.capture_logs() as logs:
            go_through(backend, ProcessState.READY)
        assert [entry["log_level"] for entry in logs] == ["error"]
        assert (backend.state, logs[0]["reason"]) == (
            BackendState.LOADING,
            "UNLOADED cannot become LOADING",
        )

    with_backend(work)
    assert illegal_transitions == ["gpu: UNLOADED cannot become LOADING"]
    illegal_transitions.clear()
