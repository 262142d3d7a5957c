"""Whatever comes on a connection, the gateway answers or closes, and goes on."""

from __future__ import annotations

import pytest

from tests.fuzz.corpus import inputs
from tests.fuzz.http import round_of

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_changed_requests_cause_no_500_and_no_hang_and_leave_nothing_behind() -> None:
    storm = await round_of(inputs("http"), 200, seed=1)
    assert not storm.failures
    assert storm.statuses[200] > 10, "some requests are served"
    assert storm.statuses[400] > 10, "some are refused"
