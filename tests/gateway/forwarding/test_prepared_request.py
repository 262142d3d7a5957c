"""A request that takes a slot: the members that its lease adds to its body."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slotgate.admission import BodyBudget, Demand, Lease, SlotPool
from slotgate.gateway.api.chunks import Identity
from slotgate.gateway.api.dialects import FrameOptions
from slotgate.gateway.api.endpoints import ENDPOINTS
from slotgate.gateway.api.prompt_size import PromptSize
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.forwarding.books import BookEntry
from slotgate.gateway.forwarding.prepared_request import PreparedRequest
from slotgate.gateway.http.context import RequestContext
from tests.admission.simulation import Simulation, ignore

BODY = b'{"prompt":"a"}'
CONTEXT = 1000


def generation(endpoint: str = "chat", body: bytes = BODY, **demand: Any) -> PreparedRequest:  # noqa: ANN401
    [found] = [each for each in ENDPOINTS if each.name == endpoint]
    return PreparedRequest(
        context=RequestContext("id", 0.0),
        endpoint=found,
        body=(body,),
        held=BodyBudget(10**9).open("t", len(body)),
        headers=[],
        identity=Identity("id", 0, "m"),
        demand=Demand("t", "m", **{"numbered": found.numbered, **demand}),
        options=FrameOptions("comment"),
        entry=BookEntry(TokenUsage(), PromptSize(0), 0.0),
        limit_name="max_tokens",
    )


def lease_of(generation: PreparedRequest, *, slots: int, context: int = 0, numbered: bool = True) -> Lease:
    pool = SlotPool("gpu", slots)
    pool.numbered, pool.context = numbered, context
    ticket = Simulation(pool).scheduler.submit(generation.demand, ignore)
    assert ticket.lease is not None
    return ticket.lease


def added(generation: PreparedRequest, **pool: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the members that the sent body has and the received body had not."""
    sent = orjson.loads(b"".join(generation.body_for(lease_of(generation, **pool))))
    return {name: value for name, value in sent.items() if name != "prompt"}


def test_a_body_says_which_slot_its_lease_holds() -> None:
    assert added(generation(), slots=2) == {"id_slot": 0}


@pytest.mark.parametrize(
    ("asked", "slots"),
    [(generation(width=2), 2), (generation("messages"), 1), (generation("embeddings"), 2)],
    ids=["several slots", "an endpoint that forgets it", "an endpoint that does not look at it"],
)
def test_a_body_names_no_slot_if_a_single_number_cannot_name_it(asked: PreparedRequest, slots: int) -> None:
    assert added(asked, slots=slots) == {}


def test_a_body_gets_the_limit_of_its_lease_and_the_slot_beside_it() -> None:
    asked = generation(tokens=100, open_ended=True)
    assert added(asked, slots=2, context=CONTEXT) == {"id_slot": 0, "max_tokens": 400}
    assert added(asked, slots=2, context=CONTEXT, numbered=False) == {"max_tokens": 400}


def test_a_body_to_which_nothing_is_added_is_the_one_that_came() -> None:
    asked = generation()
    assert asked.body_for(lease_of(asked, slots=2, numbered=False)) == asked.body


def test_a_form_stays_as_it_is() -> None:
    asked = generation("transcriptions", body=b"--x--", tokens=100, open_ended=True)
    assert asked.body_for(lease_of(asked, slots=2, context=CONTEXT)) == asked.body
