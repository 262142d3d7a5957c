"""The budget of all slow readers is not exceeded for long, and the right stream is cancelled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slotgate.gateway.streaming.buffer_budget import GUARANTEED_BYTES, BufferBudget


class CountedStream:
    """A stream that reports to a budget and counts how often it is cancelled."""

    def __init__(self, budget: BufferBudget, tenant: str, *, stalled: bool = True) -> None:
        self.tenant = tenant
        self.stalled = stalled
        self.beyond = 0
        """Bytes held beyond the guarantee."""
        self.cancels = 0
        self._budget = budget

    def hold(self, beyond: int) -> None:
        """Hold this many bytes beyond the guarantee."""
        self.beyond = max(0, beyond)
        self._budget.hold(self, GUARANTEED_BYTES + beyond)

    def release(self) -> None:
        self.beyond = 0
        self._budget.release(self)

    def cancel(self) -> None:
        self.beyond = 0
        self.cancels += 1


def cancels(*streams: CountedStream) -> list[int]:
    return [stream.cancels for stream in streams]


def test_bytes_within_the_guarantee_cost_nothing() -> None:
    budget = BufferBudget(0)
    streams = [CountedStream(budget, "a") for _ in range(100)]
    for stream in streams:
        stream.hold(0)
    assert (budget.drawn, sum(cancels(*streams))) == (0, 0)


def test_the_largest_stalled_stream_of_the_largest_tenant_is_cancelled() -> None:
    budget = BufferBudget(100)
    lonely, small, big = CountedStream(budget, "b"), CountedStream(budget, "a"), CountedStream(budget, "a")
    for stream, size in ((lonely, 40), (small, 20), (big, 30)):
        stream.hold(size)
    lonely.hold(60)
    assert cancels(lonely, small, big) == [0, 0, 1]
    assert budget.drawn == 80


def test_a_stream_whose_client_reads_is_not_cancelled() -> None:
    budget = BufferBudget(100)
    reading, stalled = CountedStream(budget, "a", stalled=False), CountedStream(budget, "a")
    stalled.hold(1)
    reading.hold(500)
    assert cancels(reading, stalled) == [0, 1]
    reading.hold(600)
    assert cancels(reading, stalled) == [0, 1]


def test_a_stream_that_shrinks_causes_no_cancel() -> None:
    budget = BufferBudget(100)
    reading, stalled = CountedStream(budget, "a", stalled=False), CountedStream(budget, "b")
    reading.hold(150)
    stalled.hold(0)
    reading.hold(140)
    assert cancels(reading, stalled) == [0, 0]


steps = st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(-GUARANTEED_BYTES, 60)))


@given(st.lists(steps, max_size=40))
def test_the_drawn_bytes_are_the_sum_over_all_streams(schedule: list[tuple[int, int | None]]) -> None:
    budget = BufferBudget(100)
    streams = [CountedStream(budget, f"tenant-{number % 2}") for number in range(5)]
    for number, size in schedule:
        if size is None:
            streams[number].release()
        else:
            streams[number].hold(size)
        assert budget.drawn == sum(stream.beyond for stream in streams) <= budget.total_bytes
    assert repr(budget).startswith(f"<BufferBudget {budget.drawn}/100 drawn by ")
