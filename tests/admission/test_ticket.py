"""A ticket is settled exactly once, and its owner finds it settled when it is called."""

from __future__ import annotations

import pytest

from slotgate.admission import Demand, Lease, Refusal, Ticket, TicketState


def ticket_of(seen: list[TicketState]) -> Ticket:
    ticket = Ticket(
        Demand("team", "model"), seq=1, enqueued_at=0.0, on_settled=lambda: seen.append(ticket.state)
    )
    return ticket


def lease() -> Lease:
    return Lease(
        Demand("team", "model"),
        pool_name="gpu",
        clock=lambda: 0.0,
        on_release=lambda _: None,
    )


def test_a_granted_ticket_has_its_lease_before_its_owner_is_called() -> None:
    leases: list[Lease | None] = []
    ticket = Ticket(
        Demand("team", "model"), seq=1, enqueued_at=0.0, on_settled=lambda: leases.append(ticket.lease)
    )
    granted = lease()
    ticket.grant(granted)
    assert leases == [granted]
    assert not ticket.queued


def test_a_refused_ticket_says_why_and_a_withdrawn_one_has_nothing_to_say() -> None:
    seen: list[TicketState] = []
    refused, withdrawn = ticket_of(seen), ticket_of(seen)
    refused.withdraw(Refusal.QUEUE_TIMEOUT)
    withdrawn.withdraw(None)
    assert seen == [TicketState.WITHDRAWN, TicketState.WITHDRAWN]
    assert (refused.refusal, withdrawn.refusal) == (Refusal.QUEUE_TIMEOUT, None)


@pytest.mark.parametrize("first", ["grant", "withdraw"])
@pytest.mark.parametrize("second", ["grant", "withdraw"])
def test_a_settled_ticket_cannot_be_settled_again(first: str, second: str) -> None:
    seen: list[TicketState] = []
    ticket = ticket_of(seen)

    def settle(how: str) -> None:
        if how == "grant":
            ticket.grant(lease())
        else:
            ticket.withdraw(None)

    settle(first)
    state = ticket.state
    with pytest.raises(ValueError, match="settled"):
        settle(second)
    assert ticket.state is state
    assert len(seen) == 1


@pytest.mark.parametrize("width", [0, -1])
def test_a_demand_for_nothing_is_an_error(width: int) -> None:
    with pytest.raises(ValueError, match="nothing"):
        Demand("team", "model", width)
