"""The queue's promises, one at a time."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

import pytest

from admission import Outcome, QueueLimits, Refusal, Refused
from admission.scheduler import BATCH_AGE_S
from tests.admission.rig import Rig, finish, lease_of


def limits(**changes: float) -> QueueLimits:
    values = {"max_queue": 100, "max_queue_per_tenant": 100, "max_queue_bytes": 1000, "queue_timeout_s": 60}
    return QueueLimits(**{**values, **changes})  # type: ignore[arg-type]


def refused(rig: Rig, **demand: object) -> Refusal:
    with pytest.raises(Refused) as caught:
        rig.submit(**demand)  # type: ignore[arg-type]
    return caught.value.refusal


def test_a_free_slot_is_granted_at_once() -> None:
    assert lease_of(Rig().submit()).live


def test_a_freed_slot_goes_to_the_one_that_waited_longest() -> None:
    rig = Rig()
    first = rig.submit(name="first")
    rig.submit(name="second")
    rig.submit(name="third")
    finish(first)
    assert rig.order == ["first", "second"]


def test_nobody_barges_in_between_a_release_and_the_next_grant() -> None:
    rig = Rig()
    held = rig.submit()
    waiting = rig.submit(name="waiting")
    finish(held)
    late = rig.submit(name="late")
    assert waiting.lease is not None
    assert late.queued


def test_a_release_counts_once_however_often_it_is_called() -> None:
    rig = Rig({"gpu": 2})
    ticket = rig.submit()
    for outcome in (Outcome.FINISHED, Outcome.ABANDONED, Outcome.FINISHED):
        lease_of(ticket).release(outcome)
    assert rig.pool.free == 2
    assert lease_of(ticket).outcome is Outcome.FINISHED


def test_a_withdrawn_ticket_is_never_granted_and_holds_nobody_up() -> None:
    rig = Rig()
    held, gone, stays = rig.submit(), rig.submit(name="gone"), rig.submit(name="stays")
    rig.scheduler.withdraw(gone)
    finish(held)
    assert (gone.lease, stays.queued) == (None, False)
    assert rig.scheduler.depth == 0


def test_a_grant_given_back_unused_is_passed_on_and_costs_nothing() -> None:
    rig = Rig()
    held, unlucky, next_one = rig.submit(), rig.submit("b", cost=1000), rig.submit("b", cost=1)
    finish(held)
    lease_of(unlucky).release(Outcome.UNUSED)
    assert lease_of(next_one).live
    assert rig.scheduler.fair.tenant("b").finish < 1000


def test_the_queue_is_bounded_by_number_by_tenant_and_by_bytes() -> None:
    rig = Rig(limits=limits(max_queue=2))
    for _ in range(3):
        rig.submit()
    assert refused(rig) is Refusal.QUEUE_FULL
    rig = Rig(limits=limits(max_queue_per_tenant=1))
    rig.submit("a")
    rig.submit("a")
    assert refused(rig, tenant="a") is Refusal.QUEUE_FULL
    assert rig.submit("b").queued
    rig = Rig(limits=limits(max_queue_bytes=10))
    rig.submit(body_bytes=100)
    rig.submit(body_bytes=10)
    assert refused(rig, body_bytes=1) is Refusal.QUEUE_FULL
    assert rig.scheduler.depth == 1


def test_a_wait_ends_after_the_timeout_and_says_so() -> None:
    rig = Rig(limits=limits(queue_timeout_s=10))
    rig.submit()
    waiting = rig.submit()
    assert rig.scheduler.next_tick_at() == 10
    rig.later(9.9)
    assert waiting.queued
    rig.later(0.1)
    assert waiting.refusal is Refusal.QUEUE_TIMEOUT


def test_draining_refuses_those_who_wait_and_those_who_come_and_leaves_leases_alone() -> None:
    rig = Rig()
    held, waiting = rig.submit(), rig.submit()
    rig.scheduler.drain()
    assert waiting.refusal is Refusal.DRAINING
    assert refused(rig) is Refusal.DRAINING
    assert lease_of(held).live


def test_shrinking_evicts_nobody_and_growing_grants_at_once() -> None:
    rig = Rig({"gpu": 3})
    held = [rig.submit() for _ in range(3)]
    waiting = [rig.submit() for _ in range(3)]
    rig.pool.total = 1
    rig.scheduler.dispatch()
    assert all(lease_of(ticket).live for ticket in held)
    finish(held[0])
    finish(held[1])
    assert all(ticket.queued for ticket in waiting)
    rig.pool.total = 3
    rig.scheduler.dispatch()
    assert [ticket.queued for ticket in waiting] == [False, False, True]


def test_a_pool_that_does_not_admit_grants_nothing() -> None:
    rig = Rig()
    rig.pool.admitting = False
    waiting = rig.submit()
    assert waiting.queued
    rig.pool.admitting = True
    rig.scheduler.dispatch()
    assert lease_of(waiting).live


def test_the_emptier_pool_serves() -> None:
    rig = Rig({"a": 1, "b": 3})
    assert [lease_of(rig.submit()).pool_name for _ in range(3)] == ["b", "b", "a"]


def test_idleness_counts_from_the_end_of_the_last_lease() -> None:
    rig = Rig({"gpu": 2})
    idle: list[float] = []
    rig.pool.on_idle = lambda: idle.append(rig.now)
    first, second = rig.submit(), rig.submit()
    rig.later(5)
    finish(first)
    assert (idle, rig.pool.status(rig.now).idle_s) == ([], 0.0)
    rig.later(5)
    finish(second)
    rig.later(3)
    assert (idle, rig.pool.status(rig.now).idle_s) == ([10], 3.0)


def test_a_model_that_nobody_serves_is_refused_and_so_are_those_who_waited_for_it() -> None:
    rig = Rig()
    rig.submit()
    waiting = rig.submit()
    assert refused(rig, model="other") is Refusal.NO_BACKEND
    rig.scheduler.route({})
    assert waiting.refusal is Refusal.NO_BACKEND


def test_a_slot_goes_to_the_first_in_order_that_may_use_it() -> None:
    rig = Rig({"x": 1, "y": 1}, models={"mx": ["x"], "my": ["y"], "both": ["x", "y"]})
    holds_x, holds_y = rig.submit(model="mx"), rig.submit(model="my")
    rig.submit("t1", model="mx", name="x only")
    rig.submit("t2", model="both", name="either")
    finish(holds_y)
    assert rig.order[-1] == "either"
    finish(holds_x)
    assert rig.order[-1] == "x only"


def test_a_tenant_may_have_only_so_many_requests_at_once() -> None:
    rig = Rig({"gpu": 4})
    rig.scheduler.set_concurrency({"a": 2})
    held = [rig.submit("a"), rig.submit("a")]
    assert refused(rig, tenant="a") is Refusal.TENANT_CONCURRENCY
    assert lease_of(rig.submit("b")).live
    finish(held[0])
    assert lease_of(rig.submit("a")).live


def test_batch_waits_for_interactive_but_not_for_ever() -> None:
    rig = Rig()
    held = rig.submit()
    rig.submit("b", batch=True, name="batch")
    served = 0
    while "batch" not in rig.order:
        current = rig.submit("a", name="interactive")
        finish(held)
        held = current if current.lease else held
        rig.later(1)
        served += 1
        assert served < 3 * BATCH_AGE_S
    assert rig.order.count("interactive") >= BATCH_AGE_S - 1


def test_the_estimated_wait_follows_the_observed_service_rate() -> None:
    rig = Rig({"gpu": 2})
    for _ in range(30):
        ticket = rig.submit()
        rig.later(8)
        finish(ticket)
    for _ in range(5):
        rig.submit()
    assert rig.scheduler.estimate_wait_s("m") == pytest.approx(8 * 4 / 2, rel=0.05)


# -- shares


def served_cost(rig: Rig, costs: dict[str, float], grants: int) -> Counter[str]:
    """With three tickets of each tenant always waiting: the work that each got done."""
    got: Counter[str] = Counter()
    for _ in range(grants):
        by_tenant = rig.scheduler.status().by_tenant
        for name, cost in costs.items():
            for _ in range(3 - by_tenant.get(name, 0)):
                rig.submit(name, cost=cost)
        ends = {lease: lease.granted_at + costs[lease.tenant] for lease in rig.pool.leases}
        first = min(ends, key=lambda lease: ends[lease])
        rig.now = max(rig.now, ends[first])
        got[first.tenant] += int(costs[first.tenant])
        first.release(Outcome.FINISHED)
    return got


@pytest.mark.parametrize(
    ("costs", "weights"),
    [
        ({"a": 10, "b": 10}, {}),
        ({"a": 5, "b": 20, "c": 40}, {}),
        ({"a": 10, "b": 30}, {"a": 2.0}),
        ({"a": 7, "b": 13, "c": 29, "d": 31, "e": 3}, {"a": 3.0, "d": 2.0}),
    ],
)
def test_shares_follow_weights_within_three_percent(
    costs: dict[str, float], weights: dict[str, float]
) -> None:
    got = served_cost(Rig({"gpu": 4}, weights=weights), costs, 4000)
    total_weight = sum(weights.get(name, 1.0) for name in costs)
    for name in costs:
        share = got[name] / sum(got.values())
        assert share == pytest.approx(weights.get(name, 1.0) / total_weight, abs=0.03), (name, got)


def test_a_thousand_tickets_at_once_delay_a_newcomer_by_one_service_time_of_the_slots() -> None:
    rig = Rig({"gpu": 4})
    crowd = [rig.submit("crowd", cost=10) for _ in range(1000)]
    for _ in range(40):  # the crowd has been served for a while
        finish(next(ticket for ticket in crowd if ticket.lease and ticket.lease.live))
    newcomer = rig.submit("newcomer", cost=10)
    served = 0
    while newcomer.lease is None:
        finish(next(ticket for ticket in crowd if ticket.lease and ticket.lease.live))
        served += 1
    assert served <= 4


def test_being_idle_saves_up_no_claim() -> None:
    rig = Rig()
    rig.submit("busy", cost=10)
    for _ in range(100):
        rig.submit("busy", cost=10)
        end_one(rig)
    for _ in range(6):
        rig.submit("idler", cost=10)
        rig.submit("busy", cost=10)
    rig.order.clear()
    for _ in range(8):
        end_one(rig)
    assert rig.order.count("busy") >= 3


def end_one(rig: Rig) -> None:
    next(iter(rig.pool.leases)).release(Outcome.FINISHED)


def test_the_real_cost_corrects_the_share() -> None:
    """Both say one token; what `liar` really costs is told afterwards."""
    rig = Rig()
    held = rig.submit("liar")
    for _ in range(50):
        rig.submit("liar", name="liar")
        rig.submit("honest", name="honest")
    rig.order.clear()
    for _ in range(40):
        tenant = next(iter(rig.pool.leases)).tenant
        if tenant == "liar":
            rig.scheduler.correct("liar", 9)
        end_one(rig)
    assert held.lease is not None
    assert rig.order.count("honest") > 3 * rig.order.count("liar")


# -- cost


def calls_of(action: object, *arguments: object) -> int:
    """Python calls that an action takes: the same on every machine."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        action(*arguments)  # type: ignore[operator]
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("tenants", [1, 10_000])
def test_ten_thousand_waiting_tickets_cost_no_more_than_ten(tenants: int) -> None:
    def work(waiting: int) -> int:
        rig = Rig()
        held = rig.submit("holder")
        for number in range(waiting):
            rig.submit(f"t{number % tenants}")
        mine = rig.submit("mine")
        calls = calls_of(rig.scheduler.withdraw, mine)
        calls += calls_of(rig.submit, "mine")
        return calls + calls_of(finish, held)

    assert work(10_000) <= 1.25 * work(10)


# -- width


def test_a_wide_grant_is_all_or_nothing() -> None:
    rig = Rig({"gpu": 3})
    narrow = [rig.submit(), rig.submit()]
    wide = rig.submit(width=2)
    assert rig.scheduler.depth == 1
    finish(narrow[0])
    assert lease_of(wide).width == 2
    assert rig.pool.free == 0
    finish(wide)
    assert rig.pool.free == 2


def test_slots_are_held_for_the_wide_one_that_is_next() -> None:
    rig = Rig({"gpu": 2})
    narrow = [rig.submit(), rig.submit()]
    wide = rig.submit(width=2, name="wide")
    rig.submit("b", name="narrow b")
    finish(narrow[0])
    assert rig.pool.free == 1, "held, not given to the narrow one behind"
    finish(narrow[1])
    assert lease_of(wide).live


def test_no_slot_is_held_idle_without_bound() -> None:
    rig = Rig({"gpu": 2})
    rig.submit()  # never ends
    wide = rig.submit(width=2)
    narrow = rig.submit("b")
    rig.later(1.9)
    assert narrow.lease is None
    rig.later(0.1)
    assert rig.order == ["a", "b"]
    assert wide.queued


def test_a_wide_one_gets_there_under_a_constant_stream_of_narrow_ones() -> None:
    rig = Rig({"gpu": 4})
    running = [rig.submit("n") for _ in range(4)]
    wide = rig.submit("w", width=4)
    for step in range(400):
        rig.later(0.5)
        running.append(rig.submit("n"))
        live = [ticket for ticket in running if ticket.lease and ticket.lease.live]
        if live and step % 2:
            finish(live[0])
        if wide.lease:
            break
    assert wide.lease is not None
    assert rig.now < 60


def test_what_no_pool_can_ever_give_is_refused() -> None:
    rig = Rig({"gpu": 2})
    assert rig.submit(width=3).refusal is Refusal.NO_BACKEND


def test_a_wide_one_does_not_block_slots_of_a_pool_that_shrank_below_it() -> None:
    rig = Rig({"gpu": 2})
    held = rig.submit()
    wide = rig.submit(width=2)
    narrow = rig.submit("b")
    rig.pool.total = 1
    finish(held)
    rig.scheduler.dispatch()
    assert wide.refusal is Refusal.NO_BACKEND
    assert lease_of(narrow).live


def test_a_withdrawn_wide_one_frees_what_was_held_for_it() -> None:
    rig = Rig({"gpu": 2})
    rig.submit()
    wide = rig.submit(width=2)
    narrow = rig.submit("b")
    rig.scheduler.withdraw(wide)
    assert lease_of(narrow).live
