"""A script is read, or refused with all of its mistakes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from slotgate.gateway.testing.fake import Scene, ScriptError, read_script, scene_of
from slotgate.gateway.testing.fake.script.answer_content import Call
from slotgate.gateway.testing.fake.script.reader import with_members
from slotgate.gateway.testing.fake.script.scene import FaultKind, Reply
from slotgate.gateway.testing.fake_program import FakeOptions, built_in, scene_for

SCRIPT = """
[server]
slots = 3
load_s = 1

[default]
tokens = 5

[[reply]]
model = "slow"
tokens_per_s = 10
at_s = [0.5, 1]
fault = { kind = "rst", after = 2 }

[[reply]]
contains = "weather"
nth = 2
call = [{ name = "weather", arguments = { city = "Oslo" } }]
fault = "crlf"
"""


def test_a_script_sets_machine_replies_pace_faults_and_calls() -> None:
    scene = scene_of(tomllib.loads(SCRIPT))
    slow, weather = scene.replies
    assert (scene.machine.slots, scene.machine.load_s, scene.otherwise.tokens) == (3, 1.0, 5)
    assert (slow.when.model, slow.pace.tokens_per_s, slow.pace.at_s) == ("slow", 10.0, (0.5, 1.0))
    assert slow.fault is not None
    assert (slow.fault.kind, slow.fault.after) == (FaultKind.RST, 2)
    assert (weather.when.contains, weather.when.nth) == ("weather", 2)
    assert weather.calls == (Call("weather", '{"city": "Oslo"}'),)
    assert scene.models == ("fake", "slow")


def test_all_mistakes_of_a_script_are_reported_with_their_places() -> None:
    wrong: dict[str, Any] = {
        "server": {"slots": 0, "n_ctx": "many", "colour": 1},
        "reply": [{"txt": "a", "tokens_per_s": -1, "fault": "boom"}, {"call": [{}], "stream": 1}],
        "extra": {},
    }
    with pytest.raises(ScriptError) as error:
        scene_of(wrong)
    assert sorted(fault.partition(":")[0] for fault in error.value.faults) == [
        "extra",
        "reply 1.fault",
        "reply 1.tokens_per_s",
        "reply 1.txt",
        "reply 2.call",
        "reply 2.stream",
        "server.colour",
        "server.n_ctx",
        "server.slots",
    ]


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text("[server\n")
    with pytest.raises(ScriptError, match=r"script\.toml"):
        read_script(tmp_path / "script.toml")


def test_a_request_changes_only_the_members_that_it_names() -> None:
    reply = with_members(Reply(text="a", reasoning="b"), {"text": "c", "tokens_per_s": 5, "fault": "stall"})
    assert (reply.text, reply.reasoning, reply.pace.tokens_per_s) == ("c", "b", 5.0)
    assert reply.fault is not None
    with pytest.raises(ScriptError, match=r"fake\.txt"):
        with_members(Reply(), {"txt": "c"})


def test_the_built_in_script_is_valid() -> None:
    assert built_in().models[0] == "fake"
    assert {"fake-thinks", "fake-tools", "fake-truncates"} <= set(built_in().models)


def test_the_command_line_and_the_environment_override_the_script(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(SCRIPT)
    options = FakeOptions(tmp_path / "script.toml", alias="m", slots=7, seed=9)
    machine = scene_for(options, {"LLAMA_API_KEY": "k"}).machine
    assert (machine.model, machine.slots, machine.seed, machine.api_key, machine.load_s) == (
        "m",
        7,
        9,
        "k",
        1.0,
    )
    assert "k" not in repr(machine).replace("kv_unified", "")[-20:]


def test_an_empty_script_has_one_slot_and_made_up_words() -> None:
    assert scene_of({}) == Scene()
