"""A pytest plugin with fixtures for a running gateway and the scripted llama-server behind it.

    def test_answer(slotgate, scripted_llama):
        scripted_llama.reply(text="Forty-two.")
        assert ask(slotgate.url, slotgate.key) == "Forty-two."

The gateway runs in a process of its own, one for a whole test run (one a worker under pytest-xdist). Each
test gets a new scripted llama-server, and the gateway knows only this one. It is a process and not a thread,
because tests freeze clocks, patch sockets and HTTP clients, capture output and stop in debuggers: none of it
must reach the gateway, and the gateway's logging must not reach the tests.

Every pytest run of an environment with slotgate imports this file, so it imports nothing of slotgate until a
test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from slotgate.gateway.testing.pytest_plugin.process import GatewayProcess
    from slotgate.gateway.testing.pytest_plugin.scripted import PlayedCassette, ScriptedLlama, Slotgate

__all__ = [
    "scripted_llama",
    "slotgate",
    "slotgate_cassette",
    "slotgate_process",
    "slotgate_script",
    "slotgate_settings",
]


@pytest.fixture(scope="session")
def slotgate_process() -> Iterator[GatewayProcess]:
    """The process behind the other fixtures."""
    from slotgate.gateway.testing.pytest_plugin.process import GatewayProcess

    with GatewayProcess() as process:
        yield process


@pytest.fixture
def slotgate_script() -> dict[str, Any] | Path | None:
    """Override this to set the script of the scripted llama-server: a path to TOML, or a dictionary."""
    return None


@pytest.fixture
def slotgate_settings() -> dict[str, Any]:
    """Override this to set sections of the configuration, such as `{"streaming": {"keepalive": "chunk"}}`."""
    return {}


@pytest.fixture
def scripted_llama(
    slotgate_process: GatewayProcess,
    slotgate_script: dict[str, Any] | Path | None,
    slotgate_settings: dict[str, Any],
) -> ScriptedLlama:
    """The scripted llama-server behind the gateway. It is new for each test."""
    from slotgate.gateway.testing.pytest_plugin.scripted import ScriptedLlama

    llama = ScriptedLlama(slotgate_process)
    llama.reset(slotgate_script, slotgate_settings)
    return llama


@pytest.fixture
def slotgate_cassette(
    slotgate_process: GatewayProcess, slotgate_settings: dict[str, Any]
) -> Iterator[PlayedCassette]:
    """Plays a recording behind the gateway. `slotgate_cassette.play(folder)` returns the same as `slotgate`.

    The test fails if it made a request without a recording.
    """
    from slotgate.gateway.testing.pytest_plugin.scripted import PlayedCassette

    cassette = PlayedCassette(slotgate_process, slotgate_settings)
    yield cassette
    assert cassette.misses == [], "requests without a recording"


@pytest.fixture
def slotgate(slotgate_process: GatewayProcess, scripted_llama: ScriptedLlama) -> Slotgate:
    """The address and the keys of a running gateway."""
    from slotgate.gateway.testing.pytest_plugin.scripted import Slotgate

    return Slotgate.of(slotgate_process, scripted_llama.models)
