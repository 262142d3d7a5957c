"""The sizes of the full benchmark, and of the quick one, which takes a minute."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "BenchPlan"]


@dataclass(frozen=True, slots=True)
class BenchPlan:
    rounds: int
    streams: int = 32
    pace: int = 50
    """Tokens per second of each stream."""
    settle_s: float = 0.5
    window_s: float = 1.5
    first_tokens: int = 200
    """Requests for the time to the first token, one after another; fewer if they take too long."""
    first_tokens_limit_s: float = 1.5
    saturated_streams: int = 8
    saturated_s: float = 1.0
    slow_streams: tuple[int, ...] = (200, 1000)
    real_rounds: int = 5
    real_streams: int = 4
    real_tokens: int = 3000
    """Tokens of each stream from the real llama-server with a tiny model."""


FULL = BenchPlan(rounds=7)
QUICK = BenchPlan(
    rounds=3,
    settle_s=0.3,
    window_s=0.6,
    first_tokens=50,
    first_tokens_limit_s=0.4,
    saturated_s=0.3,
    slow_streams=(),
    real_rounds=0,
)
