"""Places in the configuration: a path for the program, and text that the operator can search for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slotgate.gateway.settings.values import is_model_name

__all__ = ["Document", "Loc", "copied", "overlap", "quoted"]

Loc = tuple[str | int, ...]

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Document:
    """The configuration as it was written: nested tables, and the variable that each overridden value came
    from.
    """

    data: dict[str, object]
    origins: Mapping[Loc, str]

    def place(self, loc: Loc) -> str:
        """The text for `loc`: the environment variable that set it, or else its keys, names and positions."""
        for length in range(len(loc), 0, -1):
            variable = self.origins.get(loc[:length])
            if variable is not None:
                return variable + "".join(_step(step) for step in loc[length:])
        return self._written(loc) or "the configuration"

    def _written(self, loc: Loc) -> str:
        words = ""
        node: object = self.data
        for step in loc:
            words += _named(node, step) if isinstance(step, int) else _step(step)
            node = _inside(node, step)
        return words.removeprefix(".")


def overlap(one: Loc, other: Loc) -> bool:
    """Return True if one of the two places lies inside the other."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def copied(data: Mapping[str, object]) -> dict[str, object]:
    """Copy the tables and the lists of tables, so that the copy can be changed and `data` stays as it is."""
    return {key: _copied(value) for key, value in data.items()}


def _copied(value: object) -> object:
    if isinstance(value, list):
        return [dict(each) if isinstance(each, dict) else each for each in value]
    return dict(value) if isinstance(value, dict) else value


def quoted(key: str) -> str:
    """Return a plain key unchanged; any other key in quotes, on one line and shortened."""
    return key if BARE_KEY.fullmatch(key) else ascii(key[:60])


def _step(step: str | int) -> str:
    return f"[{step}]" if isinstance(step, int) else f".{quoted(step)}"


def _inside(node: object, step: str | int) -> object:
    if isinstance(node, list) and isinstance(step, int):
        return node[step] if step < len(node) else None
    return node.get(step) if isinstance(node, dict) else None


def _named(tables: object, index: int) -> str:
    """A repeated table by its name, or by its position if the name is missing, unusable or not unique."""
    names = [_inside(table, "name") for table in tables] if isinstance(tables, list) else []
    name = names[index] if index < len(names) else None
    if isinstance(name, str) and is_model_name(name) and names.count(name) == 1:
        return f' "{name}"'
    return f"[{index}]"
