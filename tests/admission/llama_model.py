"""llama-server as far as abandoned work goes, in steps of time that the test makes.

* A request is parsed first (big bodies take long), then takes a slot; its headers come at that moment.
* A closed connection is noticed while decoding at the next write; otherwise only when the whole server has
  been without a result for one second. Frames of any stream and answers to `/slots` are results.
* What was noticed in prefill ends at the next batch boundary.
* A request that finds no slot is deferred: `deferred` counts what a gateway must never cause.
"""

from __future__ import annotations

from dataclasses import dataclass

CHECK_S = 1.0
TOKEN_S = 0.05
BATCH_S = 0.3


@dataclass(eq=False)
class Work:
    parse_s: float
    prefill_s: float
    decode_s: float
    stream: bool = True
    arrived_at: float = 0.0
    started_at: float | None = None
    closed_at: float | None = None
    cancelled: bool = False
    ended_at: float | None = None
    """When its slot became free."""
    next_token_at: float = 0.0

    @property
    def decodes_at(self) -> float:
        assert self.started_at is not None
        return self.started_at + self.prefill_s

    @property
    def done_at(self) -> float:
        return self.decodes_at + self.decode_s


class LlamaModel:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.now = 0.0
        self.deferred = 0
        self.most_busy = 0
        self._last_result = 0.0
        self._parsing: list[Work] = []
        self._working: list[Work] = []

    @property
    def busy(self) -> int:
        return len(self._working)

    def receive(self, work: Work) -> None:
        work.arrived_at = self.now
        self._parsing.append(work)

    def ask_slots(self) -> int:
        """An answer of `/slots`, which is a result like any other."""
        self._last_result = self.now
        return self.busy

    def step(self, seconds: float) -> list[Work]:
        """Let time pass. What finished by itself."""
        self.now += seconds
        for work in [work for work in self._parsing if self.now >= work.arrived_at + work.parse_s]:
            if len(self._working) >= self.slots:
                self.deferred += 1
                continue
            self._parsing.remove(work)
            work.started_at = self.now
            work.next_token_at = work.decodes_at
            self._working.append(work)
        self.most_busy = max(self.most_busy, self.busy)
        finished = [work for work in self._working if self._advance(work)]
        self._working = [work for work in self._working if work.ended_at is None]
        return finished

    def _advance(self, work: Work) -> bool:
        """One work's share of a step; True when it ended by itself."""
        decoding = self.now >= work.decodes_at
        if work.closed_at is not None and decoding and work.stream:
            work.ended_at = self.now  # the write notices
            return False
        if work.closed_at is not None and not work.cancelled:
            work.cancelled = self.now - max(self._last_result, work.closed_at) >= CHECK_S
        if work.cancelled and self._at_a_boundary(work):
            work.ended_at = self.now
            return False
        if decoding and work.stream and self.now >= work.next_token_at:
            self._last_result = self.now
            work.next_token_at += TOKEN_S
        if self.now >= work.done_at:
            work.ended_at = self.now
            return work.closed_at is None
        return False

    def _at_a_boundary(self, work: Work) -> bool:
        if work.started_at is None or self.now >= work.decodes_at:
            return True
        into = (self.now - work.started_at) % BATCH_S
        return into < 0.05
