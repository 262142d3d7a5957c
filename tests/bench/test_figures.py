"""Percentiles, medians and ratios."""

from __future__ import annotations

import math

import pytest

from bench.figures import Summary, percentile, ratios, summary
from bench.samples import DIRECT, Samples


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (20, 1), (21, 2), (50, 3), (99, 5), (100, 5)])
def test_a_percentile_is_a_measured_value(percent: float, value: float) -> None:
    assert percentile([5, 3, 1, 2, 4], percent) == value


def test_without_values_there_is_no_figure() -> None:
    assert math.isnan(percentile([], 50))
    assert summary([]) is None
    assert summary([math.nan]) is None


def test_a_summary_is_the_median_and_the_range() -> None:
    assert summary([3.0, math.nan, 1.0, 2.0]) == Summary(2.0, 1.0, 3.0)


def test_ratios_compare_the_same_round() -> None:
    assert ratios([2.0, 9.0, 8.0], [1.0, 3.0, 0.0]) == [2.0, 3.0]


def test_added_time_is_the_difference_to_direct_in_the_same_round() -> None:
    samples = Samples()
    for peer, values in {DIRECT: [10.0, 20.0], "nginx": [15.0, 27.0]}.items():
        for value in values:
            samples.add(peer, "latency", value)
    assert samples.added("nginx", "latency") == Summary(6.0, 5.0, 7.0)
    assert samples.added(DIRECT, "latency") == Summary(15.0, 10.0, 20.0)
    assert samples.ratio("nginx", "latency", DIRECT) == Summary(1.425, 1.35, 1.5)
    assert samples.plain("nginx", "unknown") is None


def test_the_first_reason_for_a_failure_is_kept() -> None:
    samples = Samples()
    samples.fail("envoy", "no wheel")
    samples.fail("envoy", "no answer")
    assert samples.failures == {"envoy": "no wheel"}
