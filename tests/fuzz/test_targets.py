"""Each fuzz target holds for its corpus, and for a few mutations of it. `make fuzz` tries many more."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.corpus import inputs
from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS

NAMES = sorted(TARGETS)
TRIES = 20


@pytest.mark.parametrize("name", NAMES)
def test_a_target_holds_for_its_corpus(name: str) -> None:
    known = inputs(name)
    assert known
    for data in known:
        TARGETS[name](data)


@pytest.mark.parametrize("name", NAMES)
def test_a_target_holds_for_mutations_of_its_corpus(name: str) -> None:
    @settings(max_examples=TRIES, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(mutated(inputs(name)) | st.binary(max_size=40))
    def holds(data: bytes) -> None:
        TARGETS[name](data)

    holds()
