"""One budget over all slow readers: never over it for long, and the right one goes."""

from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.streaming.buffer_budget import GUARANTEED_BYTES, BufferBudget, BufferShare


class Stream:
    """One stream that reports to a budget and hears when it is cut."""

    def __init__(self, budget: BufferBudget, tenant: str, *, stalled: bool = True) -> None:
        self.cuts = 0
        self.budget = budget
        self.holding = BufferShare(tenant, stalled=lambda: stalled, cut=self._cut)

    def holds(self, beyond: int) -> None:
        """So many bytes beyond the guarantee."""
        self.budget.hold(self.holding, GUARANTEED_BYTES + beyond)

    def _cut(self) -> None:
        self.cuts += 1


def cuts(*streams: Stream) -> list[int]:
    return [stream.cuts for stream in streams]


def test_what_every_stream_is_sure_of_costs_nothing() -> None:
    budget = BufferBudget(0)
    streams = [Stream(budget, "a") for _ in range(100)]
    for stream in streams:
        stream.holds(0)
    assert (budget.drawn, sum(cuts(*streams))) == (0, 0)


def test_the_stalled_stream_with_most_goes_of_the_tenant_with_most() -> None:
    budget = BufferBudget(100)
    lonely, small, big = Stream(budget, "b"), Stream(budget, "a"), Stream(budget, "a")
    for stream, size in ((lonely, 40), (small, 20), (big, 30)):
        stream.holds(size)
    lonely.holds(60)
    assert cuts(lonely, small, big) == [0, 0, 1]
    assert (budget.drawn, budget.cuts) == (80, 1)


def test_a_stream_that_reads_is_not_cut() -> None:
    budget = BufferBudget(100)
    reading, stalled = Stream(budget, "a", stalled=False), Stream(budget, "a")
    stalled.holds(1)
    reading.holds(500)
    assert cuts(reading, stalled) == [0, 1]
    reading.holds(600)
    assert cuts(reading, stalled) == [0, 1]


def test_nobody_is_cut_for_a_stream_that_shrinks() -> None:
    budget = BufferBudget(100)
    reading, stalled = Stream(budget, "a", stalled=False), Stream(budget, "b")
    reading.holds(150)
    stalled.holds(0)
    reading.holds(140)
    assert cuts(reading, stalled) == [0, 0]


steps = st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(-GUARANTEED_BYTES, 60)))


@given(st.lists(steps, max_size=40))
def test_what_is_drawn_is_the_sum_of_what_the_streams_hold(schedule: list[tuple[int, int | None]]) -> None:
    budget = BufferBudget(100)
    streams = [Stream(budget, f"tenant-{number % 2}") for number in range(5)]
    for number, size in schedule:
        if size is None:
            budget.release(streams[number].holding)
        else:
            streams[number].holds(size)
        assert budget.drawn == sum(stream.holding.drawn for stream in streams) <= budget.total_bytes
    assert sum(cuts(*streams)) == budget.cuts
    assert repr(budget).startswith(f"<BufferBudget {budget.drawn}/100 drawn by ")
