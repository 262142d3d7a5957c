"""The example in docs/llama-swap.md is a configuration that the gateway accepts."""

from __future__ import annotations

import re
from pathlib import Path

from slotgate.gateway.processes.residency import LOADS_PER_TURN
from slotgate.gateway.processes.restart_policy import REST_S
from slotgate.gateway.settings import GroupSettings, load
from slotgate.gateway.settings.backend_checks import OF_COMMANDS
from tests.support.paths import DOCS

PAGE = (DOCS / "llama-swap.md").read_text()


def test_the_converted_example_is_accepted(tmp_path: Path) -> None:
    [example] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "slotgate.toml"
    path.write_text(example)
    settings = load(path, {})
    assert {backend.name: (backend.load, backend.group) for backend in settings.backends} == {
        "qwen-30b": ("demand", "gpu"),
        "coder": ("demand", "gpu"),
        "embed": ("start", ""),
    }
    assert [(group.name, group.max_loaded) for group in settings.groups] == [("gpu", 1)]
    assert settings.models[0].aliases == ("gpt-4o",)


def test_every_process_setting_is_on_the_page() -> None:
    assert [key for key in OF_COMMANDS if f"`{key}" not in PAGE and f"{key} =" not in PAGE] == []


def test_the_times_on_the_page_are_those_in_the_code() -> None:
    group = GroupSettings(name="gpu")
    assert f"stays for {group.residence_s:g} s at least" in PAGE
    assert (LOADS_PER_TURN, "four times as long as its load took" in PAGE) == (4.0, True)
    assert (group.linger_s, "unused for one second" in PAGE) == (1.0, True)
    assert (REST_S, "a minute later" in PAGE) == (60.0, True)
