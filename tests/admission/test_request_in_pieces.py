"""Pieces of one request: what has begun keeps its place."""

from __future__ import annotations

import pytest

from slotgate.admission import (
    Demand,
    Outcome,
    QueueLimits,
    Refusal,
    Refused,
    RequestInPieces,
    Scheduler,
    SlotPool,
    Ticket,
)
from tests.admission.simulation import ignore

TIGHT = QueueLimits(max_queue=1, max_queue_per_tenant=1, queue_timeout_s=60.0)
ROOMY = QueueLimits(max_queue=9, max_queue_per_tenant=9, queue_timeout_s=60.0)


def scheduler_of(slots: int, limits: QueueLimits) -> Scheduler:
    scheduler = Scheduler(limits, lambda: 1000.0)
    scheduler.route({"m": [SlotPool("gpu", slots)]})
    return scheduler


def submit(scheduler: Scheduler, request: RequestInPieces | None = None) -> Ticket:
    return scheduler.submit(Demand("t", "m", request=request), ignore)


def refusal(scheduler: Scheduler, request: RequestInPieces | None = None) -> Refusal:
    with pytest.raises(Refused) as refused:
        submit(scheduler, request)
    return refused.value.refusal


def release(ticket: Ticket) -> None:
    assert ticket.lease is not None
    ticket.lease.release(Outcome.FINISHED)


@pytest.mark.parametrize(("pieces", "begun", "taken"), [(1, True, True), (2, True, False), (1, False, False)])
def test_the_only_piece_of_a_request_that_has_begun_finds_room_in_a_full_queue(
    pieces: int, *, begun: bool, taken: bool
) -> None:
    scheduler, request = scheduler_of(1, TIGHT), RequestInPieces(pieces, begun)
    submit(scheduler)
    submit(scheduler)
    if taken:
        assert submit(scheduler, request).queued
    else:
        assert refusal(scheduler, request) is Refusal.QUEUE_FULL


def test_pieces_of_a_request_that_has_begun_go_on_while_the_gateway_drains() -> None:
    scheduler, begun, new = scheduler_of(1, ROOMY), RequestInPieces(2, begun=True), RequestInPieces(1)
    running, other, waiting = submit(scheduler, begun), submit(scheduler, new), submit(scheduler, begun)
    scheduler.drain()
    assert (other.refusal, waiting.queued) == (Refusal.DRAINING, True)
    assert refusal(scheduler, new) is Refusal.DRAINING
    release(running)
    release(waiting)
    assert submit(scheduler, begun).lease is not None
