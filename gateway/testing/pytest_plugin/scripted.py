"""What a test holds in its hands: the gateway's address, and the llama-server behind it.

Everything here blocks for as long as it says and no longer. In a coroutine whose loop also runs the
application under test, call what waits by `asyncio.to_thread`.
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
    url: str
    key: str = field(repr=False)
    openai_base_url: str
    operator_key: str = field(repr=False)
    models: tuple[str, ...]
    """What can be asked for; the first is there whatever the script says."""

    @staticmethod
    def of(process: GatewayProcess, models: tuple[str, ...]) -> Slotgate:
        told = process.told
        return Slotgate(told["url"], told["key"], told["openai_base_url"], told["operator_key"], models)

    @property
    def environment(self) -> dict[str, str]:
        """For an application that is configured by environment variables."""
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
        """`speed` is `recorded`, `max`, or how many times as fast. Raises `ControlError`."""
        recording = str(Path(folder).absolute())
        self._process.ask("/reset", cassette=recording, speed=speed, settings=self._settings)
        return Slotgate.of(self._process, ())

    @property
    def misses(self) -> list[str]:
        """What was asked and not recorded, in words."""
        misses: list[str] = self._process.ask("/state")["misses"]
        return misses


class Generation:
    """One answer in the hands of the test, held in its prompt until something is said."""

    def __init__(self, process: GatewayProcess, number: int, told: Mapping[str, Any]) -> None:
        self._process = process
        self._number = number
        self.path: str = told["path"]
        self.body: dict[str, Any] = told["body"]
        """The request, as llama-server got it."""

    def __repr__(self) -> str:
        return f"<Generation {self._number} {self.path}>"

    def say(self, *tokens: str) -> Generation:
        """Text, each piece a token."""
        return self._cue(*({"text": token} for token in tokens))

    def think(self, *tokens: str) -> Generation:
        """Reasoning."""
        return self._cue(*({"reasoning": token} for token in tokens))

    def call(self, name: str, arguments: str = "{}") -> Generation:
        """A tool call; `arguments` is JSON."""
        return self._cue({"call": name}, {"arguments": arguments})

    def finish(self, reason: str = "stop") -> None:
        """All has been said."""
        self._cue({"finish": reason})

    def fail(self, fault: str | Mapping[str, Any] = "error-frame") -> None:
        """What goes wrong now: a name or a table of a script's `fault`."""
        self._cue({"fault": fault})

    def _cue(self, *cues: Mapping[str, object]) -> Generation:
        self._process.ask("/cue", number=self._number, cues=list(cues))
        return self


class ScriptedLlama:
    """Says what its script says; `lead()` hands the answers over to the test."""

    def __init__(self, process: GatewayProcess) -> None:
        self._process = process
        self._led = 0
        self.models: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<ScriptedLlama {self.models}>"

    def reset(
        self, script: Mapping[str, Any] | Path | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        """Another server, which nobody has used. Every fixture begins with one."""
        document = tomllib.loads(script.read_text()) if isinstance(script, Path) else script
        told = self._process.ask("/reset", script=document, settings=settings)
        self.models = tuple(told["models"])
        self._led = 0

    def reply(self, **members: object) -> None:
        """One more `[[reply]]`, before all others: `reply(contains="weather", text="Rain.")`."""
        self._process.ask("/reply", reply=members)

    def lead(self) -> None:
        """From now on every answer is led by hand."""
        self._process.ask("/lead", on=True)

    def next_generation(self, within: float = 5.0) -> Generation:
        """The next answer that is led by hand, as soon as its request is here."""
        told = self._process.ask("/arrival", within, number=self._led)
        self._led += 1
        return Generation(self._process, self._led - 1, told)

    def ended(self, number: int = 0, within: float = 5.0) -> str:
        """Wait until the request of that number (of all, counted from 0) is over. How it ended, in a word:
        `complete`, `abandoned` (its client left), `failed`, or the name of a fault."""
        outcome: str = self._process.ask("/ended", within, number=number)["outcome"]
        return outcome

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Every request for work so far: `path`, `body`, `status`, `outcome`."""
        requests: list[dict[str, Any]] = self._state["requests"]
        return requests

    @property
    def busy_slots(self) -> int:
        return len(self._state["busy"])

    @property
    def ever_deferred(self) -> int:
        """Requests that had to wait inside llama-server, where nobody can see them. Behind slotgate: 0."""
        deferred: int = self._state["ever_deferred"]
        return deferred

    @property
    def _state(self) -> dict[str, Any]:
        return self._process.ask("/state")
