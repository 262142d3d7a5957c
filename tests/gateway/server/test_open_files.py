"""The limit of open files is raised as far as connections need it and the administrator allows it."""

from __future__ import annotations

import resource

import pytest
from structlog.testing import capture_logs

from slotgate.gateway.server.open_files import allow_connections

INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "becomes"),
    [
        (1024, 1048576, 8320),
        (1024, INFINITE, 8320),
        (1024, 4096, 4096),
        (1024, 1024, 1024),
        (65536, 65536, None),
        (INFINITE, INFINITE, None),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_allowed(
    soft: int, hard: int, becomes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    with capture_logs() as said:
        possible = allow_connections(4096)
    assert limits == ([] if becomes is None else [(becomes, hard)])
    assert bool(said) == (becomes is not None and becomes < 8320)
    assert possible == {4096: 1984, 1024: 448}.get(becomes or 0, 4096)
