"""When an abandoned slot may be used again: single cases, then random schedules against a model."""

from __future__ import annotations

import random

import pytest

from admission import Demand, Lease, Outcome, QueueLimits, Scheduler, SlotPool, Ticket
from admission.quarantine import EARLY_S, SPACING_S
from tests.admission.llama_model import LlamaModel, Work
from tests.admission.rig import Rig, lease_of

MIB = 1024 * 1024


def abandoned(rig: Rig, *, started: bool = True, delivered: bool = False, body_bytes: int = 0) -> Lease:
    lease = lease_of(rig.submit(body_bytes=body_bytes))
    if started:
        lease.start()
    lease.delivered = delivered
    lease.release(Outcome.ABANDONED)
    return lease


def probe(rig: Rig, busy: int, *, at: float | None = None) -> int:
    """How many slots a probe freed."""
    if at is not None:
        rig.now = at
    reading = rig.pool.probe_answered(rig.pool.probe_sent(rig.now), busy)
    rig.scheduler.dispatch()
    return reading.returned


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.REFUSED, Outcome.UNUSED])
def test_a_slot_that_is_known_to_be_idle_is_free_at_once(outcome: Outcome) -> None:
    rig = Rig()
    lease_of(rig.submit()).release(outcome)
    assert rig.pool.free == 1


def test_an_abandoned_slot_is_out_until_a_probe_shows_it_idle() -> None:
    rig = Rig()
    abandoned(rig)
    assert rig.pool.free == 0
    assert probe(rig, busy=1, at=1.5) == 0
    assert rig.pool.free == 0
    assert probe(rig, busy=0, at=3.0) == 1
    assert rig.pool.free == 1


def test_four_slots_three_live_leases_one_quarantined_nobody_gets_the_fourth() -> None:
    rig = Rig({"gpu": 4})
    live = [lease_of(rig.submit()) for _ in range(3)]
    for lease in live:
        lease.start()
    abandoned(rig)
    waiting = rig.submit("b")
    for at in (1.5, 3.0):
        probe(rig, busy=4, at=at)
        assert waiting.queued
    probe(rig, busy=3, at=4.5)
    assert lease_of(waiting).live


def test_a_lease_that_is_granted_but_not_started_explains_no_busy_slot() -> None:
    """The busy slot may be the abandoned one as well as the granted one's."""
    rig = Rig({"gpu": 2})
    granted = lease_of(rig.submit())
    abandoned(rig)
    assert probe(rig, busy=1, at=1.5) == 0
    granted.start()
    assert probe(rig, busy=1, at=3.0) == 1


def test_a_lease_that_ends_or_starts_while_a_probe_is_under_way_explains_nothing() -> None:
    rig = Rig({"gpu": 3})
    ends, starts = lease_of(rig.submit()), lease_of(rig.submit())
    ends.start()
    abandoned(rig)
    rig.now = 1.5
    sent = rig.pool.probe_sent(rig.now)
    ends.release(Outcome.FINISHED)
    starts.start()
    assert rig.pool.probe_answered(sent, 2).returned == 0
    assert len(rig.pool.quarantine) == 1


def test_of_several_the_oldest_return_first_and_as_many_stay_as_are_stale() -> None:
    rig = Rig({"gpu": 3})
    leases = [lease_of(rig.submit()) for _ in range(3)]
    for lease in leases:
        lease.start()
        rig.now += 1
        lease.release(Outcome.ABANDONED)
    assert probe(rig, busy=1, at=5) == 2
    assert [slot.closed_at for slot in rig.pool.quarantine.slots] == [3]


@pytest.mark.parametrize(("body", "too_early", "late_enough"), [(0, 0.45, 0.5), (20 * MIB, 2.4, 2.5)])
def test_a_request_closed_before_its_headers_may_start_yet(
    body: int, too_early: float, late_enough: float
) -> None:
    rig = Rig()
    abandoned(rig, started=False, body_bytes=body)
    assert probe(rig, busy=0, at=too_early) == 0
    assert probe(rig, busy=0, at=late_enough) == 1


def test_once_seen_busy_an_unstarted_request_is_judged_by_the_next_probe() -> None:
    rig = Rig()
    abandoned(rig, started=False, body_bytes=100 * MIB)
    assert probe(rig, busy=1, at=1.5) == 0
    assert probe(rig, busy=0, at=3.0) == 1


def test_a_probe_that_left_before_the_close_says_nothing_about_it() -> None:
    rig = Rig({"gpu": 2})
    abandoned(rig)
    lease = lease_of(rig.submit())
    lease.start()
    rig.now = 2
    sent = rig.pool.probe_sent(rig.now)
    lease.release(Outcome.ABANDONED)
    assert rig.pool.probe_answered(sent, 0).returned == 1
    assert len(rig.pool.quarantine) == 1


def test_a_wide_lease_explains_the_one_slot_that_it_surely_uses() -> None:
    rig = Rig({"gpu": 4})
    lease_of(rig.submit(width=3)).start()
    abandoned(rig)
    assert probe(rig, busy=2, at=1.5) == 0
    assert probe(rig, busy=1, at=3.0) == 1


def test_every_slot_of_an_abandoned_wide_lease_is_verified() -> None:
    rig = Rig({"gpu": 3})
    lease = lease_of(rig.submit(width=3))
    lease.start()
    lease.release(Outcome.ABANDONED)
    assert (rig.pool.free, probe(rig, busy=1, at=1.5), rig.pool.free) == (0, 2, 2)


def test_foreign_work_lowers_capacity_while_it_lasts_and_loses_no_slot() -> None:
    rig = Rig({"gpu": 2})
    rig.pool.quarantine.shared = True
    probe(rig, busy=1, at=0)
    assert rig.pool.free == 1
    mine, waiting = rig.submit(), rig.submit()
    lease_of(mine).start()
    assert waiting.queued
    probe(rig, busy=1, at=2)
    assert lease_of(waiting).live
    assert rig.pool.foreign == 0


def test_a_restart_frees_all() -> None:
    rig = Rig({"gpu": 2})
    abandoned(rig)
    abandoned(rig)
    assert rig.pool.quarantine.clear() == 2
    assert rig.pool.free == 2


def test_without_slots_to_ask_the_longest_doubt_ends_it() -> None:
    rig = Rig()
    abandoned(rig)
    assert rig.pool.quarantine.expire(119, 120) == 0
    assert rig.pool.quarantine.expire(120, 120) == 1


# -- when to ask


def test_a_cancelled_decode_is_asked_about_at_once_and_a_prefill_later() -> None:
    rig = Rig({"gpu": 2})
    abandoned(rig, delivered=True)
    assert rig.pool.next_probe_at() == pytest.approx(EARLY_S)
    rig = Rig({"gpu": 2})
    abandoned(rig, delivered=False)
    assert rig.pool.next_probe_at() == pytest.approx(SPACING_S)


def test_nothing_is_asked_while_nothing_is_in_doubt() -> None:
    rig = Rig({"gpu": 2})
    lease_of(rig.submit()).start()
    assert rig.pool.next_probe_at() is None


def test_probes_keep_their_distance_while_a_close_may_be_unnoticed() -> None:
    rig = Rig({"gpu": 3})
    abandoned(rig, delivered=False)
    probe(rig, busy=1, at=SPACING_S)
    rig.now = 1.6
    abandoned(rig, delivered=True)
    assert rig.pool.next_probe_at() == pytest.approx(2 * SPACING_S)


def test_decodes_that_are_cancelled_one_after_the_other_are_each_asked_about_early() -> None:
    rig = Rig()
    for start in (0.0, 0.4, 0.8):
        rig.now = start
        abandoned(rig, delivered=True)
        assert rig.pool.next_probe_at() == pytest.approx(start + EARLY_S)
        assert probe(rig, busy=0, at=start + EARLY_S) == 1


# -- against the model


STEP_S = 0.02


class Play:
    """A gateway with random clients in front of the model."""

    def __init__(self, seed: int, slots: int, requests: int, *, probe_every_s: float | None = None) -> None:
        self.dice = random.Random(seed)
        self.llama = LlamaModel(slots)
        self.pool = SlotPool("gpu", slots)
        limits = QueueLimits(10**6, max_queue_per_tenant=10**6, max_queue_bytes=10**12, queue_timeout_s=10**6)
        self.scheduler = Scheduler(limits, lambda: self.llama.now)
        self.scheduler.route({"m": [self.pool]})
        self.running: dict[Work, tuple[Lease, float]] = {}
        """Work, its lease, and when its client leaves."""
        self.waiting: list[tuple[Ticket, Work]] = []
        self.left_to_come = requests
        self.abandoned: list[Work] = []
        self.finished = 0
        self._every = probe_every_s
        self._last_probe = 0.0

    def run(self) -> None:
        while self.left_to_come or self.waiting or self.running or len(self.pool.quarantine):
            self.arrive()
            for work in self.llama.step(STEP_S):
                lease, _ = self.running.pop(work)
                lease.release(Outcome.FINISHED)
                self.finished += 1
            self.observe()
            self.maybe_probe()
            self.take_granted()
            assert self.llama.now < 3000, "a slot was lost"

    def arrive(self) -> None:
        if self.left_to_come and self.dice.random() < 0.1:
            self.left_to_come -= 1
            body = self.dice.choice([0, 0, 0, 5 * MIB, 20 * MIB])
            work = Work(
                parse_s=self.dice.uniform(0, 0.4 + 0.08 * body / MIB),
                prefill_s=self.dice.choice([0.05, 0.5, 8.0]),
                decode_s=self.dice.choice([0.1, 1.0, 4.0]),
                stream=self.dice.random() < 0.7,
            )
            ticket = self.scheduler.submit(Demand("a", "m", body_bytes=body), lambda: None)
            self.waiting.append((ticket, work))

    def take_granted(self) -> None:
        for ticket, work in [pair for pair in self.waiting if pair[0].lease is not None]:
            self.waiting.remove((ticket, work))
            stays = self.dice.random() < 0.5
            leaves_at = 10**9 if stays else self.llama.now + self.dice.uniform(0, 5)
            self.running[work] = (lease_of(ticket), leaves_at)
            self.llama.receive(work)

    def observe(self) -> None:
        """What the gateway sees of its requests, and who leaves now."""
        for work, (lease, leaves_at) in list(self.running.items()):
            if work.started_at is not None and work.stream:
                lease.start()
                lease.delivered = self.llama.now >= work.decodes_at
            if self.llama.now >= leaves_at:
                del self.running[work]
                work.closed_at = self.llama.now
                lease.release(Outcome.ABANDONED)
                self.abandoned.append(work)

    def maybe_probe(self) -> None:
        now = self.llama.now
        at = self.pool.next_probe_at()
        if self._every is not None and len(self.pool.quarantine):
            at = self._last_probe + self._every
        if at is not None and now >= at:
            self._last_probe = now
            sent = self.pool.probe_sent(now)
            self.pool.probe_answered(sent, self.llama.ask_slots())
            self.scheduler.dispatch()


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("seed", range(12))
def test_no_slot_is_given_too_early_and_none_is_lost(seed: int, slots: int) -> None:
    play = Play(seed, slots, requests=60)
    play.run()
    assert play.llama.deferred == 0
    assert play.llama.most_busy <= slots
    assert play.finished + len(play.abandoned) == 60
    assert play.pool.free == slots


def alone_in_prefill(probe_every_s: float | None) -> float:
    """How long an abandoned prefill of twelve seconds kept its slot after the close."""
    play = Play(0, 1, requests=0, probe_every_s=probe_every_s)
    ticket = play.scheduler.submit(Demand("a", "m"), lambda: None)
    work = Work(parse_s=0.0, prefill_s=12.0, decode_s=1.0)
    play.running[work] = (lease_of(ticket), 0.5)
    play.llama.receive(work)
    play.run()
    assert work.closed_at is not None
    assert work.ended_at is not None
    return work.ended_at - work.closed_at


def test_an_abandoned_prefill_with_nothing_else_running_ends_in_time() -> None:
    assert alone_in_prefill(None) < 2.5


def test_asking_every_fifth_of_a_second_would_keep_it_alive_to_its_end() -> None:
    assert alone_in_prefill(0.2) > 11
