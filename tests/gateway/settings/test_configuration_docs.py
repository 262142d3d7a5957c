"""docs/configuration.md documents every setting, and the example is accepted."""

from __future__ import annotations

import re
import tomllib

import pytest

from slotgate.gateway.app.reload import NEEDS_RESTART
from slotgate.gateway.settings import UNSUPPORTED, WITHOUT_EFFECT, Settings, load
from slotgate.gateway.settings.schema import keys, spot
from slotgate.gateway.settings.values import Table
from tests.support.paths import DOCS

HEADING = re.compile(r"^## \[+([a-z.]+)\]+$", re.MULTILINE)
ROW = re.compile(r"^\| `([a-z_]+)` \| (`[^`]+`|none|needed) \| (.+) \|$", re.MULTILINE)

NOT_DOCUMENTED = {*UNSUPPORTED, *WITHOUT_EFFECT}
"""Settings of features that are not built."""


def documented() -> dict[str, dict[str, tuple[str, str]]]:
    """Table -> key -> its default and its meaning, as they are written on the page."""
    _, *parts = HEADING.split((DOCS / "configuration.md").read_text())
    return {
        name: {key: (default, meaning) for key, default, meaning in ROW.findall(text)}
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def tables() -> dict[str, type[Table]]:
    """All tables of the configuration by the name in their heading."""
    places = {key: spot((key,)) for key in keys(Settings)}
    places["tenant.key"] = spot(("tenant", 0, "key"))
    return {name: found.table for name, found in places.items() if found and found.table}


def default_of(written: str) -> object:
    if written == "none":
        return None
    value = tomllib.loads(f"value = {written.strip('`')}")["value"]
    return tuple(value) if isinstance(value, list) else value


def test_every_table_is_documented() -> None:
    assert documented().keys() == tables().keys()


@pytest.mark.parametrize("name", tables())
def test_every_key_is_documented_in_the_order_of_the_code(name: str) -> None:
    built = [key for key in keys(tables()[name]) if f"{name}.{key}" not in NOT_DOCUMENTED]
    assert list(documented()[name]) == built


@pytest.mark.parametrize("name", tables())
def test_every_documented_default_is_the_default_of_the_code(name: str) -> None:
    fields = keys(tables()[name])
    for key, (written, _) in documented()[name].items():
        assert fields[key].is_required() == (written == "needed")
        if written != "needed":
            assert (key, fields[key].default) == (key, default_of(written))


def test_settings_that_need_a_restart_are_listed() -> None:
    _, _, text = (DOCS / "configuration.md").read_text().partition("## Reload\n")
    listed = re.findall(r"`((?:server|admission|usage)\.\w+)`", text.partition("\n## ")[0])
    assert listed == [key for key in NEEDS_RESTART if key not in NOT_DOCUMENTED]


def test_the_example_is_accepted() -> None:
    settings = load(DOCS / "slotgate.example.toml", {})
    assert [backend.name for backend in settings.backends] == ["gpu0", "local"]
