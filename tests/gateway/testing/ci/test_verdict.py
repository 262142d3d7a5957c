"""The requests that fail a CI run, and the report of them."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

import pytest

from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.testing.ci.junit import junit_xml
from slotgate.gateway.testing.ci.verdict import Verdict, in_words


def ended(
    status: int | None = 200, code: str | None = None, outcome: str | None = None, request_id: str = "r"
) -> RequestContext:
    context = RequestContext(request_id, began_at=1.0, model="m", path="/v1/chat/completions")
    context.status, context.code, context.outcome, context.ended_at = status, code, outcome, 3.5
    return context


def verdict_of(*contexts: RequestContext, expected: frozenset[str] = frozenset()) -> Verdict:
    verdict = Verdict(expected)
    for context in contexts:
        verdict.note_request(context)
    return verdict


@pytest.mark.parametrize(
    ("context", "fails"),
    [
        (ended(), False),
        (ended(500), True),
        (ended(502, "upstream_unreachable"), True),
        (ended(503, "queue_timeout"), True),
        (ended(200, "upstream_truncated"), True),
        (ended(404, "model_not_found"), True),
        (ended(404, "unknown_path"), True),
        (ended(None), True),
        (ended(None, outcome="client_gone"), False),
        (ended(200, outcome="client_gone"), False),
        (ended(400, "invalid_request"), False),
        (ended(401, "invalid_api_key"), False),
        (ended(429, "rate_limited"), False),
    ],
)
def test_which_requests_fail_a_run(context: RequestContext, *, fails: bool) -> None:
    assert bool(verdict_of(context).unexpected(lambda _: False)) is fails


def test_scripted_and_expected_failures_do_not_fail_a_run() -> None:
    verdict = verdict_of(
        ended(500, request_id="asked-for"),
        ended(504, "idle_timeout"),
        ended(502, "upstream_broken", request_id="surprise"),
        expected=frozenset({"idle_timeout"}),
    )
    assert [request.id for request in verdict.unexpected(lambda name: name == "asked-for")] == ["surprise"]


def test_health_requests_are_ignored() -> None:
    health = ended()
    health.model = None
    assert verdict_of(health).requests == []


def test_the_summary_names_failed_and_unmatched_requests() -> None:
    verdict = verdict_of(ended(), ended(502, "upstream_broken"))
    told = in_words(verdict, verdict.unexpected(lambda _: False), ["/completion x"])
    assert told == (
        "slotgate ci: 2 requests, 2 failed unexpectedly\n"
        "  /v1/chat/completions m: 502 upstream_broken\n"
        "  /completion x: no reply or recording matched"
    )


def test_error_messages_are_reported_and_cannot_break_the_xml() -> None:
    context = ended(404, "unknown_path")
    context.message = "there is nothing at /\x00\x1b[2J\ud800<b>"
    verdict = verdict_of(context)
    failures = verdict.unexpected(lambda _: False)
    suite = Xml.fromstring(junit_xml(verdict, failures, ["/\x01"]))
    expected = "404 unknown_path, there is nothing at /??[2J?<b>"
    assert next(suite.iter("failure")).get("message") == expected
    assert f": {expected}" in in_words(verdict, failures, [])


def test_junit_has_one_case_a_request_and_says_which_failed() -> None:
    verdict = verdict_of(
        ended(), ended(502, "upstream_broken", request_id="x"), ended(401, "invalid_api_key")
    )
    suite = Xml.fromstring(junit_xml(verdict, verdict.unexpected(lambda _: False), ["/completion <x>"]))
    assert (suite.get("tests"), suite.get("failures")) == ("4", "2")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["2: /v1/chat/completions m", "unmatched: /completion <x>"]
    assert suite[0].get("time") == "2.500"
