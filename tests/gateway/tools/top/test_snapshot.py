"""Snapshots of the documents of older and newer gateways."""

from __future__ import annotations

from typing import Any

import pytest

from slotgate.gateway.tools.top.snapshot import NotSlotgateError, ShownSlot, of_event, of_poll
from tests.gateway.tools.top.snapshots import ENDED, FRAME, LIVE, STATUS, request, shown


def test_a_frame_has_backends_tenants_and_requests() -> None:
    snapshot = shown()
    assert [cell.state for cell in snapshot.backends[0].slots] == [
        "generating",
        "prefill",
        "quarantined",
        "foreign",
        "idle",
        "idle",
    ]
    assert (snapshot.running, snapshot.queued, snapshot.oldest_s) == (2, 5, 8.25)
    assert (snapshot.tokens_per_s, snapshot.rate_is_live, snapshot.ttft_ms) == (84.2, True, 480.0)
    assert len(snapshot.requests) == 6


def test_ended_requests_stay_after_the_frame_that_has_them() -> None:
    later = FRAME | {"full": False, "live": [], "ended": [request(7)]}
    assert [each.id[:12] for each in of_event(later, shown()).requests] == [
        "request-0007",
        "request-0004",
        "request-0005",
        "request-0006",
    ]


def test_a_full_frame_replaces_earlier_requests() -> None:
    assert len(of_event(FRAME | {"live": [], "ended": [request(7)]}, shown()).requests) == 1


def test_polled_documents_give_slot_counts_and_an_estimated_rate() -> None:
    snapshot = of_poll(STATUS, {"requests": [*LIVE, *ENDED, request(90)]})
    assert snapshot.backends[1].slots == (ShownSlot("idle"), ShownSlot("idle"))
    assert (snapshot.tokens_per_s, snapshot.rate_is_live) == (3 * 210 / 30, False)
    slots = STATUS["backends"][0] | {"cells": []}
    counted = of_poll(STATUS | {"backends": [slots]}, {}).backends[0].slots
    assert [cell.state for cell in counted] == [
        "working",
        "working",
        "quarantined",
        "foreign",
        "idle",
        "idle",
    ]


def test_terminal_control_characters_are_replaced() -> None:
    snapshot = of_event(FRAME | {"live": [request(1, tenant="a\x1b[2Jb\n")], "ended": []}, None)
    assert snapshot.requests[0].tenant == "a\ufffd[2Jb\ufffd"


@pytest.mark.parametrize("document", [{}, {"backends": 7, "queue": {}}, {"backends": [], "queue": None}])
def test_a_document_of_another_program_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(NotSlotgateError):
        of_event(document, None)


def test_missing_or_invalid_members_count_as_empty() -> None:
    strange: dict[str, Any] = {
        "backends": [{}, {"slots": None, "cells": "x"}, 7],
        "queue": {},
        "tenants": None,
        "live": [{}],
    }
    snapshot = of_event(strange, None)
    assert (len(snapshot.backends), len(snapshot.requests), snapshot.ttft_ms) == (2, 1, None)
