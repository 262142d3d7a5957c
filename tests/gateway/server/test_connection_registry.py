"""Which connections are closed for new ones: those without a request, of the address with most of them."""

from __future__ import annotations

import asyncio

import pytest

from slotgate.gateway.server.connection_registry import SPARE, Admittance, ConnectionRegistry
from slotgate.gateway.settings import ServerSettings


class FakeConnection:
    """A connection that waits for a request until the test says that one runs."""

    transport: asyncio.Transport
    closes_late = False
    """True for a connection whose end is noted in a later turn of the event loop."""

    def __init__(self, registry: ConnectionRegistry, address: str) -> None:
        self.address = address
        self.open = True
        self._registry = registry
        self._answering = False
        registry.connections.add(self)  # type: ignore[arg-type]
        self.admittance = registry.opened(self)
        if self.admittance is Admittance.DROPPED:
            self.evict()
        else:
            registry.waits(self)

    def shutdown(self) -> None:
        raise NotImplementedError

    def answers(self) -> FakeConnection:
        self._answering = True
        self._registry.used(self)
        return self

    def has_answered(self) -> None:
        self._answering = False

    def evict(self) -> bool:
        if self._answering:
            return False
        self.open = False
        if self.closes_late:
            return True
        self._registry.used(self)
        self._registry.connections.discard(self)
        self._registry.closed(self)
        return True


def registry(**limits: int) -> ConnectionRegistry:
    return ConnectionRegistry(ServerSettings().model_copy(update=limits), (b"/health", b"/admin"))


def test_a_crowd_without_requests_loses_its_own_connections_first() -> None:
    connections = registry(max_connections=10, max_connections_per_address=0)
    friend = FakeConnection(connections, "friend")
    crowd = [FakeConnection(connections, "crowd") for _ in range(50)]
    assert friend.open
    assert [member.open for member in crowd] == [False] * 41 + [True] * 9
    assert FakeConnection(connections, "newcomer").admittance is Admittance.SERVED
    assert friend.open


def test_the_limit_of_an_address_leaves_others_alone() -> None:
    connections = registry(max_connections=10, max_connections_per_address=3)
    others = [FakeConnection(connections, f"other{number}") for number in range(3)]
    crowd = [FakeConnection(connections, "crowd").answers() for _ in range(3)]
    assert FakeConnection(connections, "crowd").admittance is Admittance.RESERVED
    assert FakeConnection(connections, "friend").admittance is Admittance.SERVED
    assert all(member.open for member in (*others, *crowd))


def test_requests_that_are_answered_are_never_closed_and_the_reserve_is_the_last_resort() -> None:
    connections = registry(max_connections=2, max_connections_per_address=0)
    running = [FakeConnection(connections, "a").answers() for _ in range(2)]
    reserve = [FakeConnection(connections, "b").answers() for _ in range(SPARE)]
    assert {member.admittance for member in reserve} == {Admittance.RESERVED}
    assert FakeConnection(connections, "c").admittance is Admittance.DROPPED
    reserve[0].has_answered()
    assert FakeConnection(connections, "c").admittance is Admittance.RESERVED
    assert all(member.open for member in running)


def test_a_connection_that_is_closing_makes_room_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeConnection, "closes_late", True)
    connections = registry(max_connections=1, max_connections_per_address=0)
    FakeConnection(connections, "a").answers()
    reserve = [FakeConnection(connections, "b") for _ in range(SPARE)]
    newcomers = [FakeConnection(connections, "c").answers() for _ in range(SPARE)]
    assert not any(member.open for member in reserve)
    assert {member.admittance for member in newcomers} == {Admittance.RESERVED}
    assert FakeConnection(connections, "d").admittance is Admittance.DROPPED


def test_connections_that_are_closed_are_forgotten() -> None:
    connections = registry(max_connections=2)
    for number in range(20):
        FakeConnection(connections, f"a{number}").evict()
    assert connections.unused == 0
    assert not connections._by_address
    assert not connections._unused


def test_the_reserve_serves_whole_path_segments() -> None:
    connections = registry()
    assert [
        connections.is_reserved_for(path) for path in (b"/health", b"/admin/status", b"/administer", b"/")
    ] == [
        True,
        True,
        False,
        False,
    ]
