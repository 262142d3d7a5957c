"""The values of the fixtures: the gateway's address, and the llama-server behind it.

Methods with `within` block for up to that many seconds. In a coroutine whose event loop also runs the
application under test, call them through `asyncio.to_thread`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slotgate.gateway.testing.pytest_plugin.process import ControlError, GatewayProcess

__all__ = ["ControlError", "Generation", "PlayedCassette", "ScriptedLlama", "Slotgate"]


@dataclass(frozen=True, slots=True)
class Slotgate:
    """The address and the keys of the gateway."""

    url: str
    key: str = field(repr=False)
    openai_base_url: str
    operator_key: str = field(repr=False)
    models: tuple[str, ...]
    """The models that the gateway serves. The first exists in every script."""

    @staticmethod
    def of(process: GatewayProcess, models: tuple[str, ...]) -> Slotgate:
        facts = process.facts
        return Slotgate(facts["url"], facts["key"], facts["openai_base_url"], facts["operator_key"], models)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for an application that uses the gateway."""
        return {
            "SLOTGATE_URL": self.url,
            "SLOTGATE_KEY": self.key,
            "OPENAI_BASE_URL": self.openai_base_url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": self.key,
        }

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


class PlayedCassette:
    """A recording behind the gateway, in place of the scripted llama-server."""

    def __init__(self, process: GatewayProcess, settings: Mapping[str, Any]) -> None:
        self._process = process
        self._settings = settings

    def play(self, folder: str | Path, speed: str = "max") -> Slotgate:
        """Play a folder. `speed` is `recorded`, `max`, or a factor. Raises `ControlError`."""
        recording = str(Path(folder).absolute())
        self._process.ask("/reset", cassette=recording, speed=speed, settings=self._settings)
        return Slotgate.of(self._process, ())

    @property
    def misses(self) -> list[str]:
        """Descriptions of the requests without a recording."""
        misses: list[str] = self._process.ask("/state")["misses"]
        return misses


class Generation:
    """An answer that the test leads. It stays in its prompt until the first token or fault."""

    def __init__(self, process: GatewayProcess, number: int, facts: Mapping[str, Any]) -> None:
        self._process = process
        self._number = number
        self.path: str = facts["path"]
        self.body: dict[str, Any] = facts["body"]
        """The body of the request, as llama-server got it."""

    def __repr__(self) -> str:
        return f"<Generation {self._number} {self.path}>"

    def say(self, *tokens: str) -> Generation:
        """Say text. Each piece is a token."""
        return self._cue(*({"text": token} for token in tokens))

    def think(self, *tokens: str) -> Generation:
        """Say reasoning. Each piece is a token."""
        return self._cue(*({"reasoning": token} for token in tokens))

    def call(self, name: str, arguments: str = "{}") -> Generation:
        """Call a tool. `arguments` is JSON text."""
        return self._cue({"call": name}, {"arguments": arguments})

    def finish(self, reason: str = "stop") -> None:
        """End the answer."""
        self._cue({"finish": reason})

    def fail(self, fault: str | Mapping[str, Any] = "error-frame") -> None:
        """Fail now. `fault` is the name or table of a fault, as in scripts."""
        self._cue({"fault": fault})

    def _cue(self, *cues: Mapping[str, object]) -> Generation:
        self._process.ask("/cue", number=self._number, cues=list(cues))
        return self


class ScriptedLlama:
    """A scripted llama-server. After `lead()` the test leads its answers."""

    def __init__(self, process: GatewayProcess) -> None:
        self._process = process
        self._led = 0
        self.models: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<ScriptedLlama {self.models}>"

    def reset(
        self, script: Mapping[str, Any] | Path | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        """Replace the server by a new one. The fixture does so for each test."""
        document = tomllib.loads(script.read_text()) if isinstance(script, Path) else script
        facts = self._process.ask("/reset", script=document, settings=settings)
        self.models = tuple(facts["models"])
        self._led = 0

    def reply(self, **members: object) -> None:
        """Add a `[[reply]]` before all others, as in `reply(contains="weather", text="Rain.")`."""
        self._process.ask("/reply", reply=members)

    def lead(self) -> None:
        """Lead every answer from now on."""
        self._process.ask("/lead", on=True)

    def next_generation(self, within: float = 5.0) -> Generation:
        """Wait for the next request, and return its answer for the test to lead."""
        facts = self._process.ask("/arrival", within, number=self._led)
        self._led += 1
        return Generation(self._process, self._led - 1, facts)

    def ended(self, number: int = 0, within: float = 5.0) -> str:
        """Wait until a request is over, by its number among all requests, counted from 0. Return its outcome.

        Outcomes are `complete`, `abandoned` (the client left), `failed`, and the names of faults.
        """
        outcome: str = self._process.ask("/ended", within, number=number)["outcome"]
        return outcome

    @property
    def requests(self) -> list[dict[str, Any]]:
        """All requests for work so far, each with `path`, `body`, `status` and `outcome`."""
        requests: list[dict[str, Any]] = self._state["requests"]
        return requests

    @property
    def busy_slots(self) -> int:
        return len(self._state["busy"])

    @property
    def ever_deferred(self) -> int:
        """The number of requests that ever waited inside llama-server. Behind slotgate it stays 0."""
        deferred: int = self._state["ever_deferred"]
        return deferred

    @property
    def _state(self) -> dict[str, Any]:
        return self._process.ask("/state")
