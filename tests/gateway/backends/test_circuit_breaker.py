"""Conditions under which a circuit breaker opens and closes."""

from __future__ import annotations

from slotgate.gateway.backends.circuit_breaker import REST_S, TRIPS_AFTER, CircuitBreaker, CircuitState


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
