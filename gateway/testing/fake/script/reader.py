"""Reads scripts: TOML in a file, or the same names in JSON inside a request. It reports every mistake.

[server]      the members of `Machine`
[default]     the reply to requests that no other reply matches
[[reply]]     the members of `When`, `Reply` and `Pace` side by side; `fault` is a name or a table;
              `call` is a list of tables with `name` and `arguments`
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from slotgate.gateway.testing.fake.script.answer_content import Call
from slotgate.gateway.testing.fake.script.scene import (
    FaultKind,
    Machine,
    Pace,
    Reply,
    Scene,
    ScriptedFault,
    When,
)

__all__ = ["ScriptError", "read_fault", "read_script", "scene_of", "with_members"]

Value = TypeVar("Value")
_REPLY_PARTS: Final = frozenset({"when", "pace", "fault", "calls"})
_SECTIONS: Final = ("server", "default", "reply")


class ScriptError(ValueError):
    """A script is not valid. The text has one line for each mistake, with its place."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


def read_script(path: Path) -> Scene:
    """Read a script from a TOML file. Raises `ScriptError`."""
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ScriptError([f"{path}: {error}"]) from error
    return scene_of(document)


def scene_of(document: Mapping[str, Any]) -> Scene:
    """Read a script from a parsed document. Raises `ScriptError`."""
    faults: list[str] = []
    faults += [
        f"{name}: unknown; there are {', '.join(_SECTIONS)}" for name in document if name not in _SECTIONS
    ]
    machine = _read(Machine, document.get("server", {}), "server", faults)
    otherwise = _reply(document.get("default", {}), "default", faults)
    entries = document.get("reply", [])
    if not isinstance(entries, list):
        faults.append("reply: must be written [[reply]]")
        entries = []
    replies = [_reply(entry, f"reply {number}", faults) for number, entry in enumerate(entries, 1)]
    if machine is not None and machine.slots < 1:
        faults.append("server.slots: must be 1 or more")
    if faults:
        raise ScriptError(faults)
    assert machine is not None
    assert otherwise is not None
    return Scene(machine, tuple(reply for reply in replies if reply is not None), otherwise)


def with_members(reply: Reply, members: Mapping[str, Any]) -> Reply:
    """Return the reply, changed by the members that a request states. Raises `ScriptError`."""
    faults: list[str] = []
    other = _reply(members, "fake", faults, start=reply)
    if faults or other is None:
        raise ScriptError(faults)
    return other


def read_fault(value: object) -> ScriptedFault:
    """Read a fault, which is a name or a table. Raises `ScriptError`."""
    faults: list[str] = []
    fault = _fault(value, "fault", faults)
    if fault is None or faults:
        raise ScriptError(faults)
    return fault


def _reply(entry: object, place: str, faults: list[str], start: Reply | None = None) -> Reply | None:
    start = start or Reply()
    if not isinstance(entry, Mapping):
        faults.append(f"{place}: must be a table")
        return None
    groups: dict[type, dict[str, Any]] = {When: {}, Pace: {}, Reply: {}}
    for name, value in entry.items():
        group = next((group for group in groups if name in _names(group) - _REPLY_PARTS), None)
        if group is not None:
            groups[group][name] = value
        elif name not in ("fault", "call"):
            faults.append(f"{place}.{name}: unknown")
    when = _read(When, groups[When], place, faults, start.when)
    pace = _read(Pace, groups[Pace], place, faults, start.pace)
    reply = _read(Reply, groups[Reply], place, faults, start)
    fault = _fault(entry["fault"], f"{place}.fault", faults) if "fault" in entry else start.fault
    calls = _calls(entry["call"], f"{place}.call", faults) if "call" in entry else start.calls
    if reply is None or when is None or pace is None:
        return None
    return dataclasses.replace(reply, when=when, pace=pace, fault=fault, calls=calls)


def _fault(value: object, place: str, faults: list[str]) -> ScriptedFault | None:
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        faults.append(f"{place}: must be a name or a table")
        return None
    kinds = {kind.value: kind for kind in FaultKind}
    kind = kinds.get(str(table.get("kind")))
    if kind is None:
        faults.append(f"{place}: {table.get('kind')!r} is not one of {', '.join(kinds)}")
        return None
    rest = {name: item for name, item in table.items() if name != "kind"}
    return _read(ScriptedFault, rest, place, faults, ScriptedFault(kind))


def _calls(value: object, place: str, faults: list[str]) -> tuple[Call, ...]:
    entries = value if isinstance(value, list) else [value]
    calls = []
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            faults.append(f"{place}: each needs a name")
            continue
        arguments = entry.get("arguments", {})
        calls.append(
            Call(
                entry["name"],
                arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
            )
        )
    return tuple(calls)


# -- tables into values


def _read(
    kind: type[Value], table: object, place: str, faults: list[str], start: Value | None = None
) -> Value | None:
    """Return the value with the members of the table, each checked against the annotation of its field."""
    if not isinstance(table, Mapping):
        faults.append(f"{place}: must be a table")
        return None
    hints = typing.get_type_hints(kind)
    members: dict[str, Any] = {}
    for name, value in table.items():
        if name not in hints:
            faults.append(f"{place}.{name}: unknown")
            continue
        fitting = _fitted(value, hints[name])
        if fitting is _UNFIT:
            faults.append(f"{place}.{name}: {value!r} is not {_wanted(hints[name])}")
        else:
            members[name] = fitting
    return kind(**members) if start is None else dataclasses.replace(start, **members)  # type: ignore[type-var]


_UNFIT: Final = object()


def _fitted(value: object, hint: object) -> object:
    if isinstance(hint, types.UnionType):
        fits = (_fitted(value, one) for one in typing.get_args(hint) if one is not type(None))
        return next((fit for fit in fits if fit is not _UNFIT), _UNFIT)
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        items = [_fitted(item, inner) for item in value] if isinstance(value, list) else [_UNFIT]
        return _UNFIT if _UNFIT in items else tuple(items)
    if isinstance(value, bool) or hint is bool:
        return value if isinstance(value, bool) and hint is bool else _UNFIT
    if hint is float and isinstance(value, int | float):
        return float(value) if value >= 0 else _UNFIT
    if hint is int and isinstance(value, int):
        return value if value >= 0 else _UNFIT
    return value if isinstance(hint, type) and type(value) is hint else _UNFIT


def _wanted(hint: object) -> str:
    if isinstance(hint, types.UnionType):
        return _wanted(next(one for one in typing.get_args(hint) if one is not type(None)))
    if typing.get_origin(hint) is tuple:
        return f"a list, each {_wanted(typing.get_args(hint)[0])}"
    names = {
        str: "a text",
        int: "a whole number, 0 or more",
        float: "a number, 0 or more",
        bool: "true or false",
    }
    return names.get(hint, "that") if isinstance(hint, type) else "that"


def _names(kind: type) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(kind))
