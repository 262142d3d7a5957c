"""docs/configuration.md and the example say what the models say."""

import re
import tomllib

import pytest

from slotgate.gateway.app.reload import OF_THE_PROCESS
from slotgate.gateway.settings import NOT_YET, Settings, load
from slotgate.gateway.settings.schema import keys, spot
from slotgate.gateway.settings.values import Table
from tests.support.paths import DOCS

HEADING = re.compile(r"^## \[+([a-z.]+)\]+$", re.MULTILINE)
ROW = re.compile(r"^\| `([a-z_]+)` \| (`[^`]+`|none|needed) \| (.+) \|$", re.MULTILINE)


def documented() -> dict[str, dict[str, tuple[str, str]]]:
    """Each table's keys, with what is written about their default and their meaning."""
    _, *parts = HEADING.split((DOCS / "configuration.md").read_text())
    return {
        name: {key: (default, meaning) for key, default, meaning in ROW.findall(text)}
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def tables() -> dict[str, type[Table]]:
    """All tables of the configuration by the name of their heading."""
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
def test_every_key_is_documented_in_the_order_of_the_model(name: str) -> None:
    assert list(documented()[name]) == list(keys(tables()[name]))


@pytest.mark.parametrize("name", tables())
def test_every_documented_default_is_the_model_s(name: str) -> None:
    fields = keys(tables()[name])
    for key, (written, _) in documented()[name].items():
        assert fields[key].is_required() == (written == "needed")
        if written != "needed":
            assert (key, fields[key].default) == (key, default_of(written))


def test_what_is_not_built_is_marked() -> None:
    marked = {
        f"{name}.{key}"
        for name, rows in documented().items()
        for key, (_, meaning) in rows.items()
        if meaning.endswith("*Not yet*")
    }
    assert marked == set(NOT_YET)


def test_what_takes_effect_in_a_new_process_only_is_listed() -> None:
    _, _, text = (DOCS / "configuration.md").read_text().partition("## Reading it again\n")
    listed = re.findall(r"`((?:server|admission|usage)\.\w+)`", text.partition("\n## ")[0])
    assert listed == list(OF_THE_PROCESS)


def test_the_example_is_accepted() -> None:
    settings = load(DOCS / "slotgate.example.toml", {})
    assert [backend.name for backend in settings.backends] == ["gpu0", "local"]
