"""Words the messages of faults: the allowed values, and the value that was found, unless it is secret."""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Iterable
from typing import Literal, get_args, get_origin

from pydantic_core import ErrorDetails

from slotgate.gateway.settings.places import Loc
from slotgate.gateway.settings.schema import Spot, keys, spot

__all__ = ["any_of", "expected", "shown", "suggestion", "unknown_key", "worded"]

UNITS = {"_ms": "milliseconds", "_s": "seconds", "_bytes": "bytes"}
SHOWN_CHARACTERS = 60
PASSWORD = re.compile(r"://[^/]*@")
QUERY = re.compile(r"(://[^?]*\?).*")


def worded(error: ErrorDetails) -> str:
    """Translate an error of pydantic into a message."""
    loc: Loc = tuple(error["loc"])
    match error["type"]:
        case "missing":
            return "is needed"
        case "extra_forbidden":
            return unknown_key(str(loc[-1]), _siblings(loc))
        case "value_error":
            return str(error["ctx"]["error"]) + _instead(spot(loc), error["input"])
    found = spot(loc)
    return f"must be {expected(found) if found else 'something else'}" + _instead(found, error["input"])


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The message for a key that does not exist. It suggests the known key that looks most like it."""
    return "is not a known setting" + suggestion(key, known)


def suggestion(text: str, known: Iterable[str]) -> str:
    """Ask whether a known word that looks like `text` was meant; empty if there is none."""
    near = difflib.get_close_matches(text[:100], sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def expected(found: Spot) -> str:
    """Describe what belongs at a place: its type, its unit, its smallest and largest value."""
    if found.table:
        many = found.is_list or found.repeated
        return f"a table, written [[{found.key}]]" if many else f"a table, written [{found.key}]"
    if found.is_list:
        return 'a list of text such as ["a", "b"]'
    if get_origin(found.kind) is Literal:
        return any_of([f'"{choice}"' for choice in get_args(found.kind)])
    plain: dict[object, str] = {
        bool: "true or false",
        str: "text",
        datetime.date: "a date such as 2027-01-31",
    }
    return plain.get(found.kind) or _number(found)


def any_of(choices: list[str]) -> str:
    """Join choices: `a`, `a or b`, `a, b or c`."""
    return " or ".join([*([", ".join(choices[:-1])] if len(choices) > 1 else []), choices[-1]])


def shown(value: object) -> str:
    """Show a value as the operator wrote it, on one line and shortened."""
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "a table"
        case list() | tuple():
            return "a list"
        case str():
            return _short(value)
        case int() if abs(value) >= 10**SHOWN_CHARACTERS:
            return "a far larger number" if value > 0 else "a far smaller number"
    return str(value)


def _number(found: Spot) -> str:
    kind = "a whole number" if found.kind is int else "a number"
    unit = next((f" of {unit}" for suffix, unit in UNITS.items() if found.key.endswith(suffix)), "")
    return f"{kind}{unit} from {found.limit('ge')} to {found.limit('le')}"


def _instead(found: Spot | None, value: object) -> str:
    if found is None or found.hidden:
        return ""
    return f", not {shown(value)}"


def _short(text: str) -> str:
    text = QUERY.sub(r"\1", PASSWORD.sub("://", text))
    return repr(text) if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]!r} and more"


def _siblings(loc: Loc) -> Iterable[str]:
    outer = spot(loc[:-1])
    return keys(outer.table) if outer and outer.table else ()
