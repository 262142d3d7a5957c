"""Make `Settings` from a file and the environment, or report all their faults at once.

pydantic checks types and limits. Then checks across several settings run on a copy without the faulty values,
so that one typing error does not hide other faults. A finding that follows from a faulty value is dropped.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from slotgate.gateway.settings.crosschecks import findings
from slotgate.gateway.settings.document import Settings
from slotgate.gateway.settings.environment import overlay
from slotgate.gateway.settings.faults import SettingsError, SettingsFault
from slotgate.gateway.settings.places import Document, Loc, copied, overlap
from slotgate.gateway.settings.wording import worded

__all__ = ["load", "parse"]

POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """Read `path` (None: defaults only) and `environ`. Raises `SettingsError` with all faults."""
    return parse(_read(path) if path else {}, environ)


def parse(data: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """Parse `data`, a TOML document, with `environ` over it. Raises `SettingsError` with all faults."""
    document, faults = overlay(data, environ)
    settings, errors = _validated(document.data)
    faults += [SettingsFault(document.place(tuple(error["loc"])), worded(error)) for error in errors]
    faults += _across(settings, environ, document, [tuple(error["loc"]) for error in errors])
    if faults:
        raise SettingsError(tuple(faults))
    return settings


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as unreadable:
        raise SettingsError(
            (SettingsFault(f"{path}", f"cannot be read: {unreadable.strerror}"),)
        ) from unreadable
    except UnicodeDecodeError as binary:
        raise SettingsError(
            (SettingsFault(f"{path}", f"is not UTF-8 text at byte {binary.start}"),)
        ) from binary
    except ValueError as malformed:
        raise SettingsError((_syntax(path, malformed),)) from malformed
    except RecursionError as deep:
        raise SettingsError((SettingsFault(f"{path}", "is nested too deeply"),)) from deep


def _syntax(path: Path, malformed: ValueError) -> SettingsFault:
    text = str(malformed)
    position = POSITION.search(text)
    if position is None:  # Python refuses a number of thousands of digits; that error has no position
        return SettingsFault(f"{path}", "has a number that is too long")
    where = f"line {position[1]}, column {position[2]}" if position[1] else "end of the file"
    return SettingsFault(f"{path}, {where}", f"is not TOML: {text[: position.start()]}")


def _validated(data: dict[str, object]) -> tuple[Settings, list[ErrorDetails]]:
    """Return the settings, with the default in place of each faulty value, and the faults."""
    try:
        return Settings.model_validate(data), []
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
    return Settings.model_validate(_without_faults(data, [tuple(error["loc"]) for error in errors])), errors


def _without_faults(data: dict[str, object], spoiled: list[Loc]) -> dict[str, object]:
    """Copy `data` without its faulty values. Repeated tables keep their position; a missing name is added."""
    usable = copied(data)
    for loc in spoiled:
        _leave_out(usable, loc)
    for tables in usable.values():
        for index, table in enumerate(tables) if isinstance(tables, list) else ():
            table.setdefault("name", f"nameless-{index}")
    return usable


def _leave_out(data: dict[str, object], loc: Loc) -> None:
    node = data.get(str(loc[0]))
    match loc[1:]:
        case (int() as index,) if isinstance(node, list):
            node[index] = {}
        case (int() as index, key, *_) if isinstance(node, list):
            node[index].pop(key, None)
        case (key, *_) if isinstance(node, dict):
            node.pop(key, None)
        case _:
            data.pop(str(loc[0]), None)


def _across(
    settings: Settings, environ: Mapping[str, str], document: Document, spoiled: list[Loc]
) -> list[SettingsFault]:
    return [
        SettingsFault(document.place(finding.loc), finding.message)
        for finding in findings(settings, environ)
        if not any(overlap(bad, read) for bad in spoiled for read in (finding.loc, *finding.reads))
    ]
