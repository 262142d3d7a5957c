"""Single values: their types, their limits, and the messages that refuse them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

from slotgate.gateway.settings import Settings
from slotgate.gateway.settings.schema import keys, spot
from slotgate.gateway.settings.values import LONGEST_S, SHORTEST_S
from tests.support.configurations import faults_in, parsed

ZERO_MEANS_SOMETHING = {
    "server.drain_delay_s",
    "backend.idle_unload_s",
    "admission.affinity_max_wait_ms",
    "group.residence_s",
    "group.linger_s",
}
TABLES: dict[str, dict[str, object]] = {
    "model": {"name": "m"},
    "tenant": {"name": "a", "key_hashes": []},
    "backend": {"name": "gpu0", "command": ["llama-server"]},
    "group": {"name": "g"},
}


def keys_of(top: str) -> dict[str, FieldInfo]:
    found = spot((top,))
    assert found is not None
    assert found.table is not None
    return keys(found.table)


TIMES = [f"{top}.{key}" for top in keys(Settings) for key in keys_of(top) if key.endswith(("_s", "_ms"))]


def place_of(time: str) -> str:
    """The place as a fault shows it: a repeated table by its name."""
    top, key = time.split(".")
    return f'{top} "{TABLES[top]["name"]}".{key}' if top in TABLES else time


def faults_with(time: str, value: object) -> list[str]:
    """The faults of a configuration that sets only this time."""
    top, key = time.split(".")
    table = {**TABLES.get(top, {}), key: value}
    found = faults_in(**{top: [table] if top in TABLES else table})
    return [fault for fault in found if "not supported yet" not in fault]


def smallest(time: str) -> float:
    return 0 if time in ZERO_MEANS_SOMETHING else SHORTEST_S


@pytest.mark.parametrize("time", TIMES)
def test_the_default_of_a_time_is_finite(time: str) -> None:
    top, key = time.split(".")
    assert smallest(time) <= keys_of(top)[key].default <= LONGEST_S


@pytest.mark.parametrize("time", sorted(set(TIMES) - ZERO_MEANS_SOMETHING))
def test_a_time_of_zero_is_refused_with_the_smallest_allowed(time: str) -> None:
    expected = [f"{place_of(time)}: must be a number of seconds from 0.001 to 604800, not 0"]
    assert expected == faults_with(time, 0)


@pytest.mark.parametrize("time", sorted(ZERO_MEANS_SOMETHING))
def test_zero_is_allowed_where_it_means_something(time: str) -> None:
    assert faults_with(time, 0) == []


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize(
    ("value", "found"),
    [
        (-1, "-1"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (1e300, "1e+300"),
        pytest.param(10**400, "a far larger number", id="more than a float holds"),
        pytest.param(16**5000, "a far larger number", id="more digits than int() prints"),
        pytest.param(-(10**400), "a far smaller number", id="less than a float holds"),
        ("soon", "'soon'"),
        ("5", "'5'"),
        (True, "true"),
        ([1], "a list"),
        ({}, "a table"),
    ],
)
def test_a_time_that_is_not_a_positive_finite_number_is_refused(time: str, value: object, found: str) -> None:
    [fault] = faults_with(time, value)
    assert fault.startswith(f"{place_of(time)}: must be a number of ")
    assert f" from {smallest(time)} to " in fault
    assert fault.endswith(f", not {found}")


@pytest.mark.parametrize("time", TIMES)
def test_a_time_may_be_a_fraction_and_a_whole_number(time: str) -> None:
    assert faults_with(time, 0.5) == []
    assert faults_with(time, 7) == []


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"port": "x"}, "server.port: must be a whole number from 0 to 65535, not 'x'"),
        ({"port": -1}, "server.port: must be a whole number from 0 to 65535, not -1"),
        ({"port": 70000}, "server.port: must be a whole number from 0 to 65535, not 70000"),
        ({"port": 80.5}, "server.port: must be a whole number from 0 to 65535, not 80.5"),
        ({"port": True}, "server.port: must be a whole number from 0 to 65535, not true"),
        ({"allow_anonymous": 1}, "server.allow_anonymous: must be true or false, not 1"),
        ({"host": 1}, "server.host: must be text, not 1"),
        (
            {"max_body_bytes": 0},
            "server.max_body_bytes: must be a whole number of bytes from 1 to 1099511627776, not 0",
        ),
        (
            {"cors_origins": "*"},
            'server.cors_origins: must be a list of text such as ["a", "b"], not \'*\'',
        ),
        ({"cors_origins": [1]}, "server.cors_origins[0]: must be text, not 1"),
    ],
)
def test_a_fault_says_which_values_are_allowed(table: dict[str, object], fault: str) -> None:
    assert [fault] == faults_in(server=table)


@pytest.mark.parametrize(
    ("table", "choices"),
    [
        ({"keepalive": "ping"}, '"comment", "chunk" or "off"'),
        ({"keepalive": 1}, '"comment", "chunk" or "off"'),
        ({"merge": "always"}, '"backlog" or "never"'),
    ],
)
def test_a_choice_names_all_choices(table: dict[str, object], choices: str) -> None:
    [fault] = faults_in(streaming=table)
    assert f"must be {choices}, not " in fault


def test_a_stream_buffer_is_at_least_64_kib() -> None:
    [fault] = faults_in(streaming={"stream_buffer_bytes": 65535})
    assert "from 65536 " in fault
    assert faults_in(streaming={"stream_buffer_bytes": 65536}) == []


@pytest.mark.parametrize("value", [True, False, "best-effort"])
def test_isolation_is_true_false_or_best_effort(value: object) -> None:
    faults = faults_in(tenant=[{"name": "a", "key_hashes": [], "isolate_cache": value}])
    assert not any("must be" in fault for fault in faults)


def test_any_other_isolation_is_refused() -> None:
    expected = ['tenant "a".isolate_cache: must be true, false or "best-effort", not \'yes\'']
    assert expected == faults_in(tenant=[{"name": "a", "key_hashes": [], "isolate_cache": "yes"}])


@pytest.mark.parametrize(
    ("store", "file", "url"),
    [
        ("", "slotgate.db", None),
        ("none", None, None),
        ("sqlite:///a b?c%41.db", "a b?c%41.db", None),
        ("sqlite:////var/usage.db", "/var/usage.db", None),
        ("postgresql://h/d", None, "postgresql://h/d"),
        (
            "postgres://u:p%40@[::1]:5433/d?sslmode=require",
            None,
            "postgres://u:p%40@[::1]:5433/d?sslmode=require",
        ),
    ],
)
def test_a_usage_store_is_a_file_or_a_database_or_none(store: str, file: str | None, url: str | None) -> None:
    usage = parsed(usage={"store": store}).usage
    assert (usage.sqlite_file, usage.postgresql_url) == (Path(file) if file else None, url)


@pytest.mark.parametrize(
    "store",
    [
        "sqlite",
        "sqlite://usage.db",
        "sqlite:///",
        "sqlite:///:memory:",
        "mysql://u:s3cret@h/d",
        "postgresql:s3cret",
        "postgresql://u:s3cret%zz@h/d",
        "postgresql://u:s3cret@h:port/d",
        "postgresql://u:s3cret@[h/d",
    ],
)
def test_another_usage_store_is_refused_and_not_repeated(store: str) -> None:
    [fault] = faults_in(usage={"store": store})
    assert fault.startswith("usage.store: must ")
    assert "s3cret" not in fault
