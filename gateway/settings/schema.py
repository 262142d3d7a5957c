"""Look up what a place of the configuration may hold: its type and the limits of its value."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Annotated, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from slotgate.gateway.settings.document import Settings
from slotgate.gateway.settings.places import Loc
from slotgate.gateway.settings.values import Hidden, Table

__all__ = ["Spot", "keys", "spot"]


@dataclass(frozen=True, slots=True)
class Spot:
    """An existing place: its key, its plain type, and the annotations that limit its value."""

    key: str
    kind: object
    marks: tuple[object, ...] = ()
    repeated: bool = False

    @property
    def hidden(self) -> bool:
        return any(isinstance(mark, Hidden) for mark in self.marks)

    @property
    def is_list(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def table(self) -> type[Table] | None:
        """The class of the table at this place (a repeated table included), or None if it holds a plain
        value.
        """
        found = _item(self.kind) if self.is_list else self.kind
        return found if isinstance(found, type) and issubclass(found, Table) else None

    def limit(self, name: str) -> object:
        """The limit `name` (`ge` or `le`) of the value, or None if it has none."""
        return next((getattr(mark, name) for mark in self.marks if hasattr(mark, name)), None)


def spot(loc: Loc) -> Spot | None:
    """Return what belongs at `loc`, or None if no setting has this place."""
    here: Spot | None = Spot("", Settings)
    for step in loc:
        here = _inner(here, step) if here else None
    return here


def keys(table: type[Table]) -> dict[str, FieldInfo]:
    """The fields of a table by their keys in the file."""
    return {field.alias or name: field for name, field in table.model_fields.items()}


def _inner(outer: Spot, step: str | int) -> Spot | None:
    if isinstance(step, int):
        return _unwrapped(outer.key, _item(outer.kind), outer.marks, repeated=True) if outer.is_list else None
    field = None if outer.is_list or outer.table is None else keys(outer.table).get(step)
    return _unwrapped(step, field.annotation, tuple(field.metadata)) if field else None


def _item(repeated: object) -> object:
    return get_args(repeated)[0]


def _unwrapped(key: str, kind: object, marks: tuple[object, ...], *, repeated: bool = False) -> Spot:
    """Strip `Annotated` and `| None` from the type: what remains is the type that a value is written in."""
    while True:
        if get_origin(kind) is Annotated:
            kind, *more = get_args(kind)
            marks += tuple(mark for each in more for mark in _flat(each))
        elif get_origin(kind) in (Union, types.UnionType):
            kind = next(each for each in get_args(kind) if each is not types.NoneType)
        else:
            return Spot(key, kind, marks, repeated)


def _flat(mark: object) -> tuple[object, ...]:
    return tuple(mark.metadata) if isinstance(mark, FieldInfo) else (mark,)
