"""The progress of a request that is asked piece by piece is told for every lease by itself."""

from __future__ import annotations

import asyncio

from slotgate.admission import Demand, Lease, Outcome
from slotgate.gateway.api.prompt_size import PromptSize
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.forwarding.books import BookEntry
from slotgate.gateway.forwarding.context_watch import ContextWatch
from slotgate.gateway.forwarding.in_flight import InFlight, Progress
from slotgate.gateway.forwarding.split_entry import SplitEntry
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.errors import GatewayError
from tests.support.virtual_time import run_virtual


class Answer:
    def __init__(self, entry: SplitEntry) -> None:
        self._entry = entry

    def progress(self) -> Progress:
        return self._entry.progress()

    def cancel(self, error: GatewayError) -> None:
        raise AssertionError(error)

    @property
    def waits(self) -> bool:
        return False

    def runs_on(self, backend: str) -> bool:
        return backend == "gpu0"


def leased() -> Lease:
    return Lease(Demand("a", "m"), pool_name="gpu0", clock=lambda: 0.0, on_release=lambda _: None)


def test_a_short_piece_has_not_used_what_a_long_one_beside_it_has() -> None:
    async def main() -> list[int]:
        size = PromptSize(0)
        entry = SplitEntry(TokenUsage(4), size, 0.0)
        pieces: list[BookEntry] = [entry.begin(1, size, expected) for expected in (10.0, 900.0, 30.0, 7.0)]
        leases = [leased() for _ in pieces[:3]]
        for piece, lease in zip(pieces, leases, strict=False):
            piece.lease = lease
        in_flight = InFlight()
        watch = ContextWatch(asyncio.get_running_loop(), in_flight)
        with in_flight.holding(Answer(entry), RequestContext("id", 0.0)):
            watch._look()
        used = [lease.used_tokens for lease in leases]
        leases[1].release(Outcome.FINISHED)
        entry.end(pieces[1], None)
        assert entry.progress().leases == (leases[0], leases[2])
        assert entry.progress().context_tokens == (10, 30)
        watch.close()
        return used

    assert run_virtual(main()) == [10, 900, 30]
