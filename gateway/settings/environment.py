"""Override settings by environment variables: `SLOTGATE_SECTION__KEY`, `SLOTGATE_TABLE__NAME__KEY`.

Only a variable with two underscores in a row is a setting. `SLOTGATE_CONFIG` is none, nor are the variables
that Kubernetes injects for a service called slotgate. A table's name is written in upper case, with `_` for
every character but letters and digits. A variable that matches no setting is a fault, because a misspelt
override that is ignored would be noticed only in production.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from slotgate.gateway.settings.document import Settings
from slotgate.gateway.settings.faults import SettingsFault
from slotgate.gateway.settings.places import Document, Loc, copied, quoted
from slotgate.gateway.settings.schema import Spot, keys, spot
from slotgate.gateway.settings.wording import suggestion, unknown_key

__all__ = ["from_text", "in_variables", "overlay"]

PREFIX = "SLOTGATE_"
NOT_IN_NAMES = re.compile(r"[^A-Z0-9]")


def overlay(data: Mapping[str, object], environ: Mapping[str, str]) -> tuple[Document, list[SettingsFault]]:
    """Return `data` with the environment over it, and a fault for each variable that matches no setting."""
    layer = _Overlay(data, copied(data))
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and "__" in variable:
            layer.put(variable, environ[variable])
    return Document(layer.data, layer.origins), layer.faults


@dataclass(slots=True)
class _Overlay:
    written: Mapping[str, object]
    data: dict[str, object]
    origins: dict[Loc, str] = field(default_factory=dict)
    faults: list[SettingsFault] = field(default_factory=list)

    def put(self, variable: str, text: str) -> None:
        try:
            loc = self._loc(variable)
        except LookupError as nowhere:
            self.faults.append(SettingsFault(quoted(variable), str(nowhere.args[0])))
            return
        found = spot(loc)
        table = self._table(loc[:-1])
        if found and table is not None:
            table[str(loc[-1])] = from_text(found, text)
            self.origins[loc] = variable

    def _loc(self, variable: str) -> Loc:
        """The place that the variable sets. Raises `LookupError` with the fault's message."""
        first, _, rest = variable.removeprefix(PREFIX).partition("__")
        sections = {key.upper(): key for key in keys(Settings)}
        top = sections.get(first)
        if top is None or not rest:
            raise LookupError(unknown_key(variable, _all_variables()))
        outer: Loc = (top,)
        found = spot(outer)
        if found and found.is_list:
            name, _, rest = rest.rpartition("__")
            outer = (top, self._index(top, name))
        if spot((*outer, rest.lower())) is None or rest != rest.upper():
            stem = variable.removesuffix(rest)
            raise LookupError(unknown_key(variable, _variables(stem, found)))
        return (*outer, rest.lower())

    def _index(self, top: str, name: str) -> int:
        """The index of the table that `name` means.

        Only names in the file count, not names set by variables.
        """
        names = [in_variables(each) for each in _names(self.written.get(top))]
        if names.count(name) == 1:
            return names.index(name)
        if name in names:
            raise LookupError(f"means more than one {top}: in variables their names are the same")
        raise LookupError(f"there is no {top} of that name in the file" + suggestion(name, names))

    def _table(self, loc: Loc) -> dict[str, object] | None:
        """The table to write into, or None if the file has no table there; validation reports that."""
        top, *index = loc
        node = self.data.setdefault(str(top), {})
        if index and isinstance(node, list):
            node = node[int(index[0])]
        return node if isinstance(node, dict) else None


def in_variables(name: str) -> str:
    """Return a table's name as it is written in a variable: `team-a` becomes `TEAM_A`."""
    return NOT_IN_NAMES.sub("_", name.upper())


def from_text(found: Spot, text: str) -> object:
    """Parse `text` as the type of `found`. If that fails, return `text`: validation then refuses it."""
    read = _json if found.is_list else READERS.get(found.kind, str)
    try:
        return read(text)
    except (LookupError, ValueError, RecursionError):
        return text


def _json(text: str) -> object:
    value = json.loads(text)
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


READERS: dict[object, Callable[[str], object]] = {int: int, float: float, bool: _truth}


def _names(tables: object) -> Iterator[str]:
    for table in tables if isinstance(tables, list) else ():
        name = table.get("name") if isinstance(table, dict) else None
        yield name if isinstance(name, str) else ""


def _variables(stem: str, found: Spot | None) -> list[str]:
    return [stem + key.upper() for key in keys(found.table)] if found and found.table else []


def _all_variables() -> list[str]:
    tops = ((key, spot((key,))) for key in keys(Settings))
    return [each for key, found in tops for each in _variables(f"{PREFIX}{key.upper()}__", found)]
