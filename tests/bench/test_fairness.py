"""Many tenants on few slots: the figures of `make fairness` keep their promises and match the page."""

from __future__ import annotations

import fcntl
import os
import pickle

import pytest

from bench.fairness.figures import Figures, measure
from tests.support.paths import DOCS

COUNTS = ("| one tenant |", "| a tenant each |")
"""Lines of the page that change with the interpreter and with the scheduler's code."""


@pytest.fixture(scope="session")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """Measure once for all workers of the run: the first one does it, and the others wait for its file."""
    if "PYTEST_XDIST_TESTRUNUID" not in os.environ:
        return measure()
    file = tmp_path_factory.getbasetemp().parent / "fairness"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_bytes(pickle.dumps(measure()))
        found: Figures = pickle.loads(file.read_bytes())  # written by this run
    return found


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_shares_follow_weights_within_three_percent(figures: Figures, count: int) -> None:
    shares = figures.shares[count - 2]
    assert len(shares.tenants) == count
    assert shares.off_by <= 0.03, shares
    hour = next(number for number, at in enumerate(shares.hours) if at >= 1)
    for tenant, parts in zip(shares.tenants, shares.parts, strict=True):
        assert all(part == pytest.approx(shares.due(tenant), rel=0.06) for part in parts[hour:])


@pytest.mark.slow
def test_scenario_036_a_newcomer_waits_one_service_time_at_most_behind_a_thousand(figures: Figures) -> None:
    assert [arrival.slots for arrival in figures.arrivals] == [1, 2, 4, 8]
    for arrival in figures.arrivals:
        assert max(arrival.waits) <= 1, arrival
        assert arrival.in_line > 50, "there was a crowd"


def test_batch_advances_under_constant_interactive_load(figures: Figures) -> None:
    batch = figures.batch
    assert batch.widest_gap <= 33
    assert 1 / 33 <= batch.batch[-1] / (batch.interactive[-1] + batch.batch[-1]) <= 1 / 16
    assert all(later > earlier for earlier, later in zip(batch.batch, batch.batch[1:], strict=False))


def test_every_promise_about_the_next_minutes_is_kept(figures: Figures) -> None:
    assert len(figures.promises) > 20
    assert [promise for promise in figures.promises if not promise.kept] == []


def test_ten_thousand_waiting_cost_no_more_than_ten(figures: Figures) -> None:
    one_few, one_many, each_few, each_many = figures.queues
    assert one_many.instructions == pytest.approx(one_few.instructions, rel=0.01)
    assert each_many.instructions <= 1.25 * each_few.instructions
    assert each_many.calls <= 1.25 * each_few.calls


@pytest.mark.slow
def test_the_published_page_is_up_to_date(figures: Figures) -> None:
    """Run `make fairness` to update it."""
    assert (DOCS / "fairness.svg").read_text() == figures.picture
    assert lines((DOCS / "fairness.md").read_text()) == lines(figures.page)


def lines(page: str) -> list[str]:
    return [line for line in page.splitlines() if not line.startswith(COUNTS)]
