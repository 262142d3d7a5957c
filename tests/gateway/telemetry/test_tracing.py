"""Tracing is switched on by the environment, and costs nothing if it is off."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slotgate.gateway.app.application import stack
from slotgate.gateway.app.serve import assemble
from slotgate.gateway.auth.identity import identities_of
from slotgate.gateway.telemetry.tracing import is_configured, traced
from slotgate.middleware import Traced
from tests.support.gateway import settings_for
from tests.support.logged import logged
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://user:canary@127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, True),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "True"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_a_collector_in_the_environment_turns_traces_on(environ: dict[str, str], on: bool) -> None:
    assert is_configured(environ) is on


@pytest.mark.slow
def test_without_a_collector_the_library_is_not_loaded() -> None:
    code = (
        "import asyncio, sys, slotgate.gateway.app.serve\n"
        "from slotgate.gateway.telemetry.tracing import traced\n"
        "async def main():\n"
        "    async with traced({}) as trace:\n"
        "        otel = 'slotgate.gateway.telemetry.otel' in sys.modules\n"
        "        print(trace, otel, 'opentelemetry' in sys.modules)\n"
        "asyncio.run(main())"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("None False False\n", "")


async def test_without_traces_the_stack_has_no_layer_for_them() -> None:
    settings = settings_for("http://127.0.0.1:1")
    for trace, layers in ((None, 0), (lambda *_: lambda: None, 1)):
        async with assemble(settings, trace=trace) as (_, fleet):
            made = [layer(unreached) for layer in stack(settings, fleet, identities_of(settings))[:3]]
            assert sum(isinstance(each, Traced) for each in made) == layers


async def unreached(*_: object) -> None:
    raise AssertionError("no request is served")


async def test_a_missing_library_is_logged_and_traces_stay_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "slotgate.gateway.telemetry.otel", None)
    with logged() as log:
        async with traced(ENDPOINT) as trace:
            assert trace is None
    [said] = log.events
    assert (said["log_level"], "`otel`" in said["event"]) == ("warning", True)
    assert "canary" not in log.text


@pytest.mark.parametrize(
    "endpoint", ["collector:4318", "not a url", "grpc://user:canary@collector:4317", "http://"]
)
async def test_a_collector_that_is_not_a_url_is_logged(endpoint: str) -> None:
    with logged() as log:
        async with traced({"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}) as trace:
            assert trace is None
    [said] = log.events
    assert (said["log_level"], said["variable"]) == ("warning", "OTEL_EXPORTER_OTLP_ENDPOINT")
    assert "http://collector:4318" in said["event"]
    assert "canary" not in log.text
