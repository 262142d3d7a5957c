"""A pytest plugin: a running gateway, and the llama-server behind it in the hands of the test.

    def test_answer(slotgate, scripted_llama):
        scripted_llama.reply(text="Forty-two.")
        assert ask(slotgate.url, slotgate.key) == "Forty-two."

The gateway runs in a process of its own, one for a whole test run (one a worker under pytest-xdist). Each
test gets a scripted llama-server that nobody has used before, and a gateway that knows no other. A process
and no thread: what tests do to theirs (a frozen clock, patched sockets and HTTP clients, captured output, a
debugger) must not reach the gateway, and the gateway's logging must not reach them.

Every pytest run of an environment that has slotgate installed imports this file: it imports nothing of
slotgate until a fixture is asked for.
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
    """The process behind the other fixtures; for tests of its own life."""
    from slotgate.gateway.testing.pytest_plugin.process import GatewayProcess

    with GatewayProcess() as process:
        yield process


@pytest.fixture
def slotgate_script() -> dict[str, Any] | Path | None:
    """Override it: what the scripted llama-server says, a path to TOML or the same as a dictionary."""
    return None


@pytest.fixture
def slotgate_settings() -> dict[str, Any]:
    """Override it: sections of the configuration, such as `{"streaming": {"keepalive": "chunk"}}`."""
    return {}


@pytest.fixture
def scripted_llama(
    slotgate_process: GatewayProcess,
    slotgate_script: dict[str, Any] | Path | None,
    slotgate_settings: dict[str, Any],
) -> ScriptedLlama:
    """The llama-server behind the gateway: what it says, and when."""
    from slotgate.gateway.testing.pytest_plugin.scripted import ScriptedLlama

    llama = ScriptedLlama(slotgate_process)
    llama.reset(slotgate_script, slotgate_settings)
    return llama


@pytest.fixture
def slotgate_cassette(
    slotgate_process: GatewayProcess, slotgate_settings: dict[str, Any]
) -> Iterator[PlayedCassette]:
    """Plays a recording behind the gateway: `slotgate_cassette.play(folder)` gives what `slotgate` is.

    The test fails if it asked for what was not recorded.
    """
    from slotgate.gateway.testing.pytest_plugin.scripted import PlayedCassette

    cassette = PlayedCassette(slotgate_process, slotgate_settings)
    yield cassette
    assert cassette.misses == [], "asked for what was not recorded"


@pytest.fixture
def slotgate(slotgate_process: GatewayProcess, scripted_llama: ScriptedLlama) -> Slotgate:
    """A running gateway: where it is and how to be let in."""
    from slotgate.gateway.testing.pytest_plugin.scripted import Slotgate

    return Slotgate.of(slotgate_process, scripted_llama.models)
