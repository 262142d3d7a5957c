"""What a backend's state follows from, on virtual time."""

import pytest

from slotgate.gateway.backends.backend import GIVE_UP_S, Backend, Hold
from slotgate.gateway.backends.circuit_breaker import REST_S, TRIPS_AFTER, CircuitBreaker, CircuitState
from slotgate.gateway.backends.state import NEXT, BackendState
from tests.support.virtual_time import run_virtual

READY, FAILED, DRAINING = BackendState.READY, BackendState.FAILED, BackendState.DRAINING
STARTING, LOADING, STOPPED = BackendState.STARTING, BackendState.LOADING, BackendState.STOPPED


def backend() -> Backend:
    return Backend("gpu0", "http://127.0.0.1:9", api_key=None, slots=2)


async def observed(*states: BackendState) -> Backend:
    made = backend()
    for state in states:
        made.observe(state)
    return made


def test_the_table_names_every_state_and_no_state_follows_itself() -> None:
    assert set(NEXT) == set(BackendState)
    assert not [state for state, following in NEXT.items() if state in following]


def test_only_a_ready_backend_admits() -> None:
    async def run() -> None:
        made = backend()
        seen = {}
        for state in (LOADING, READY, BackendState.BUSY, FAILED, STOPPED):
            made.observe(state)
            seen[state] = made.pool.admitting
        assert seen == {state: state is READY for state in seen}

    run_virtual(run())


def test_what_is_stopped_has_to_start_before_it_is_ready() -> None:
    async def run() -> None:
        made = await observed(STOPPED)
        with pytest.raises(ValueError, match="stopped cannot become ready"):
            made.observe(READY)

    run_virtual(run())


def test_a_backend_that_drains_becomes_again_what_was_seen_of_it_meanwhile() -> None:
    async def run() -> None:
        made = await observed(READY)
        made.hold(Hold.BY_ORDER)
        assert (made.state, made.lost) == (DRAINING, True)
        made.observe(LOADING)
        assert made.state is DRAINING
        made.hold(None)
        assert (made.state, made.lost) == (LOADING, False)

    run_virtual(run())


def test_a_process_that_is_about_to_stop_is_waited_for() -> None:
    async def run() -> None:
        made = await observed(READY)
        made.hold(Hold.TO_STOP)
        assert (made.state, made.lost, made.hopeless(GIVE_UP_S * 2)) == (DRAINING, False, False)

    run_virtual(run())


def test_what_was_given_up_is_hopeless_at_once_and_what_is_not_there_after_a_while() -> None:
    async def run() -> None:
        made = await observed(FAILED)
        assert [made.hopeless(now) for now in (0.0, GIVE_UP_S)] == [False, True]
        made.given_up = True
        assert made.hopeless(0.0)

    run_virtual(run())


def test_silences_in_a_row_open_the_circuit_although_health_is_good() -> None:
    async def run() -> None:
        made = await observed(READY)
        for _ in range(TRIPS_AFTER - 1):
            made.silent()
        assert made.state is READY
        made.silent()
        made.observe(READY)
        assert (made.state, made.pool.admitting) == (FAILED, False)
        assert made.explanation == "3 requests in a row had no event in time"
        made.answered()
        assert (made.state, made.explanation) == (READY, "")

    run_virtual(run())


def test_an_answer_in_between_begins_the_count_anew() -> None:
    circuit = CircuitBreaker()
    for _ in range(10):
        for _ in range(TRIPS_AFTER - 1):
            circuit.silent(0.0)
        circuit.answered()
    assert circuit.state is CircuitState.CLOSED


def test_after_a_rest_one_request_tries_and_decides() -> None:
    circuit = CircuitBreaker()
    seen = []
    for silent_at, looked_at in ((0.0, REST_S - 1), (0.0, REST_S), (REST_S + 1, REST_S + 2)):
        for _ in range(TRIPS_AFTER):
            circuit.silent(silent_at)
        circuit.rested(looked_at)
        seen.append(circuit.state.value)
    circuit.rested(2 * REST_S + 1)
    seen.append(circuit.state.value)
    circuit.silent(3 * REST_S)
    seen.append(circuit.state.value)
    circuit.answered()
    seen.append(circuit.state.value)
    assert seen == ["open", "half-open", "open", "half-open", "open", "closed"]
