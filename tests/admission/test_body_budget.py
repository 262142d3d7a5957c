"""The bodies of all requests keep to one budget, and every tenant is sure of an equal part of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotgate.admission import BodyBudget, HeldBody, Refused

LIMIT = 100


class Bodies:
    """Opens bodies, and remembers which were given up."""

    def __init__(self) -> None:
        self.budget = BodyBudget(LIMIT)
        self.given_up: list[str] = []
        self.stack = ExitStack()

    def open(self, name: str, size: int = 0, *, needed: bool = False) -> HeldBody:
        """`name` begins with the tenant's letter. A body that is needed cannot be given up."""
        body = self.budget.open(name[0], 0)
        if not needed:
            self.stack.enter_context(body.given_up_by(lambda _: self.given_up.append(name)))
        if size:
            body.grow(size)
        return body


@pytest.fixture
def bodies() -> Iterator[Bodies]:
    made = Bodies()
    with made.stack:
        yield made


def test_bytes_count_as_they_come_and_until_they_are_released(bodies: Bodies) -> None:
    body = bodies.open("a1", 10)
    body.grow(20)
    assert (bodies.budget.held, bodies.budget.held_by("a")) == (30, 30)
    body.release()
    body.release()
    assert bodies.budget.held == 0


def test_the_tenant_with_most_loses_its_newest(bodies: Bodies) -> None:
    for name in ("a1", "a2", "a3"):
        bodies.open(name, 30)
    bodies.open("b1", 30)
    assert bodies.given_up == ["a3"]
    assert (bodies.budget.held_by("a"), bodies.budget.held_by("b")) == (60, 30)


def test_an_older_body_goes_on_while_the_newest_of_its_tenant_leaves(bodies: Bodies) -> None:
    old, new = bodies.open("a1", 50), bodies.open("a2", 40)
    old.grow(20)
    assert bodies.given_up == ["a2"]
    assert (old.size, new.size) == (70, 0)


def test_the_newest_is_refused_when_it_is_its_own_growth_that_is_too_much(bodies: Bodies) -> None:
    bodies.open("a1", 60)
    new = bodies.open("a2", 30)
    with pytest.raises(Refused):
        new.grow(20)
    assert bodies.budget.held == 60


def test_a_body_that_is_being_sent_is_not_given_up(bodies: Bodies) -> None:
    bodies.open("a1", 90, needed=True)
    with pytest.raises(Refused):
        bodies.open("b1", 20)
    assert bodies.budget.held == 90


def test_a_body_that_is_alone_fits_whatever_its_size(bodies: Bodies) -> None:
    bodies.open("a1", 10 * LIMIT)
    assert bodies.given_up == []


def test_a_body_that_announces_too_much_is_refused_before_a_byte_has_come(bodies: Bodies) -> None:
    bodies.open("a1", 60)
    with pytest.raises(Refused):
        bodies.budget.open("a", 50)
    bodies.budget.open("b", 50)
    bodies.budget.open("a", 40)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60)), max_size=30))
def test_the_budget_holds_and_no_tenant_below_its_part_loses_a_body(grown: list[tuple[str, int]]) -> None:
    bodies = Bodies()
    with bodies.stack:
        for number, (tenant, size) in enumerate(grown):
            tenants = {name for name in "abc" if bodies.budget.held_by(name)} | {tenant}
            mine = bodies.budget.held_by(tenant)
            try:
                bodies.open(f"{tenant}{number}", size)
            except Refused:
                assert mine + size > LIMIT / len(tenants)
            assert bodies.budget.held <= LIMIT
