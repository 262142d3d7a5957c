"""The dashboard and alerts in docker/monitoring use only metrics and labels that the gateway has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from slotgate.admission import QueueLimits, Scheduler, SlotPool
from slotgate.gateway.admin.metrics import Metrics
from slotgate.gateway.backends.backend import Backend
from slotgate.gateway.forwarding.in_flight import InFlight
from slotgate.gateway.forwarding.retries import RetryCounts
from slotgate.gateway.http.context import RequestContext
from tests.support.paths import ROOT

MONITORING = ROOT / "docker" / "monitoring"
_NAME = re.compile(r"\b((?:slotgate|process)_[a-z_]+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"by \(([^)]*)\)")
_BY_PROMETHEUS = {"le", "job", "instance"}


def families() -> list[Metric]:
    """Return all metrics of the gateway, after each kind of request has ended once."""
    scheduler = Scheduler(QueueLimits(1, 1, 1, 1), lambda: 0.0)
    scheduler.route({"m": [SlotPool("gpu0", 1)]})
    retries = RetryCounts()
    retries.made["gpu0", "died"] = retries.withheld["gpu0", "alone"] = 1
    backends = [Backend("gpu0", "http://127.0.0.1:1", api_key=None)]
    made = Metrics(scheduler, InFlight(), lambda: backends, retries)
    for context in (
        RequestContext("1", 0.0, model="m", code="rate_limited", status=429),
        RequestContext("2", 0.0, model="m", code="upstream_broken", status=502),
        RequestContext("3", 0.0, model="m", outcome="client_gone", status=200),
        RequestContext("4", 0.0, model="m", status=200, queued_at=0.0, granted_at=0.5, first_output_at=1.0),
    ):
        context.completion_tokens, context.ended_at = 5, 2.0
        made.observe(context)
    return list(text_string_to_metric_families(made.text().decode()))


def metrics() -> dict[str, set[str]]:
    """Return the names of all series with their labels."""
    found: dict[str, set[str]] = {}
    for family in families():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> Iterator[str]:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]
    rules = (MONITORING / "alerts.yaml").read_text()
    yield from re.findall(r"expr: (?:>-\s+)?(.+)", rules)


@pytest.mark.parametrize("expression", list(expressions()))
def test_an_expression_uses_series_and_labels_that_exist(expression: str) -> None:
    known = metrics()
    used = _NAME.findall(expression)
    assert used, expression
    labels: set[str] = set()
    for name, matchers in used:
        assert name in known, name
        labels |= known[name]
        for label in re.findall(r"(\w+)\s*=", matchers):
            assert label in known[name] | _BY_PROMETHEUS, (name, label)
    for grouping in _GROUPING.findall(expression):
        for label in grouping.split(","):
            assert label.strip() in labels | _BY_PROMETHEUS, (expression, label)
    for label in re.findall(r"label_values\([^,]+, (\w+)\)", expression):
        assert label in labels


def test_every_slotgate_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    named = {family.name.removesuffix("_created") for family in families() if "slotgate" in family.name}
    shown = " ".join(expressions())
    unseen = {name for name in named if name not in shown} - {"slotgate_requests_in_flight"}
    assert unseen == set()


def test_panels_have_distinct_positions_and_ids() -> None:
    panels = json.loads((MONITORING / "grafana-dashboard.json").read_text())["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(panels) == len({panel["id"] for panel in panels})
