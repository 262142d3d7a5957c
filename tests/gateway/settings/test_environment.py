"""Environment variables override the file."""

from __future__ import annotations

import json

import pytest

from slotgate.gateway.settings import load
from slotgate.gateway.settings.environment import in_variables
from tests.support.configurations import BACKEND, digest, faults_in, faults_of, parsed, with_backend

TENANT: dict[str, object] = {"name": "team-a", "key_hashes": [digest("a")]}


def test_a_variable_overrides_the_file() -> None:
    settings = parsed({"SLOTGATE_SERVER__PORT": "9000"}, server={"port": 8000})
    assert settings.server.port == 9000


def test_a_variable_sets_a_key_that_the_file_leaves_out() -> None:
    assert parsed({"SLOTGATE_TIMEOUTS__IDLE_S": "1.5"}).timeouts.idle_s == 1.5


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("TRUE", True)])
def test_a_boolean_is_written_as_in_the_file(text: str, value: bool) -> None:
    assert parsed({"SLOTGATE_SERVER__ALLOW_ANONYMOUS": text}).server.allow_anonymous is value


def test_a_list_is_written_as_json() -> None:
    origins = ["https://a.example", "https://b.example"]
    settings = parsed({"SLOTGATE_SERVER__CORS_ORIGINS": json.dumps(origins)})
    assert settings.server.cors_origins == tuple(origins)


def test_a_table_is_addressed_by_its_name() -> None:
    environ = {"SLOTGATE_TENANT__TEAM_A__WEIGHT": "2", "SLOTGATE_BACKEND__GPU0__SLOTS": "4"}
    settings = parsed(environ, tenant=[{**TENANT, "name": "other", "key_hashes": []}, TENANT])
    assert [tenant.weight for tenant in settings.tenants] == [1, 2]
    assert [backend.slots for backend in settings.backends] == [4]


def test_a_name_may_have_two_underscores() -> None:
    settings = parsed({"SLOTGATE_TENANT__TEAM__A__WEIGHT": "2"}, tenant=[{**TENANT, "name": "team--a"}])
    assert settings.tenants[0].weight == 2


def test_a_renamed_table_is_addressed_by_its_name_in_the_file() -> None:
    environ = {"SLOTGATE_TENANT__TEAM_A__NAME": "team-b", "SLOTGATE_TENANT__TEAM_A__WEIGHT": "2"}
    [tenant] = parsed(environ, tenant=[TENANT]).tenants
    assert (tenant.name, tenant.weight) == ("team-b", 2)


def test_the_file_s_data_is_not_changed() -> None:
    data = with_backend(server={"port": 1}, tenant=[dict(TENANT)])
    before = json.dumps(data)
    faults_of(data, {"SLOTGATE_SERVER__PORT": "2", "SLOTGATE_TENANT__TEAM_A__WEIGHT": "3"})
    assert json.dumps(data) == before


@pytest.mark.parametrize(
    "variable", ["SLOTGATE_CONFIG", "SLOTGATE_MODEL", "SLOTGATE_PORT", "SLOTGATE_SERVICE_HOST", "OTHER__PORT"]
)
def test_a_variable_without_two_underscores_is_ignored(variable: str) -> None:
    assert faults_in({variable: "tcp://10.0.0.1:80"}) == []


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("SLOTGATE_SERVER__PROT", "is not a known setting; did you mean SLOTGATE_SERVER__PORT?"),
        ("SLOTGATE_SEVER__PORT", "is not a known setting; did you mean SLOTGATE_SERVER__PORT?"),
        ("SLOTGATE__SERVER__PORT", "is not a known setting; did you mean SLOTGATE_SERVER__PORT?"),
        ("SLOTGATE_server__port", "is not a known setting"),
        ("SLOTGATE_SERVER__port", "is not a known setting"),
        ("SLOTGATE_SERVER__", "is not a known setting"),
        ("SLOTGATE_SERVER__PORT__X", "is not a known setting; did you mean SLOTGATE_SERVER__PORT?"),
        (
            "SLOTGATE_TENANT__TEAM_A__WIGHT",
            "is not a known setting; did you mean SLOTGATE_TENANT__TEAM_A__WEIGHT?",
        ),
        (
            "SLOTGATE_TENANT__TEEM_A__WEIGHT",
            "there is no tenant of that name in the file; did you mean TEAM_A?",
        ),
        ("SLOTGATE_TENANT__WEIGHT", "there is no tenant of that name in the file"),
        ("SLOTGATE_GROUP__GPU__MAX_LOADED", "there is no group of that name in the file"),
    ],
)
def test_a_variable_that_matches_no_setting_is_a_fault(variable: str, message: str) -> None:
    [fault] = faults_in({variable: "1"}, tenant=[TENANT])
    assert fault.startswith(f"{variable}: {message}")


def test_a_variable_that_matches_two_tables_is_a_fault() -> None:
    tenants = [{**TENANT, "name": name, "key_hashes": []} for name in ("team-a", "team.a")]
    [fault] = faults_in({"SLOTGATE_TENANT__TEAM_A__WEIGHT": "2"}, tenant=tenants)
    assert fault.startswith("SLOTGATE_TENANT__TEAM_A__WEIGHT: means more than one tenant")


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("SLOTGATE_SERVER__PORT", "x", "must be a whole number from 0 to 65535, not 'x'"),
        ("SLOTGATE_SERVER__PORT", "", "must be a whole number from 0 to 65535, not ''"),
        ("SLOTGATE_SERVER__PORT", "9" * 5000, "must be a whole number from 0 to 65535, not '999"),
        ("SLOTGATE_SERVER__ALLOW_ANONYMOUS", "yes", "must be true or false, not 'yes'"),
        ("SLOTGATE_TIMEOUTS__IDLE_S", "inf", "must be a number of seconds from 0.001 to 604800, not inf"),
        ("SLOTGATE_SERVER__CORS_ORIGINS", "*", 'must be a list of text such as ["a", "b"], not \'*\''),
        ("SLOTGATE_SERVER__CORS_ORIGINS", '{"a": 1}', "must be a list of text"),
        ("SLOTGATE_SERVER__CORS_ORIGINS", "[" * 100_000, "must be a list of text"),
        ("SLOTGATE_SERVER__TLS_CERT", "\udc80", "must be text without line breaks"),
    ],
)
def test_a_faulty_value_is_reported_under_its_variable(variable: str, text: str, message: str) -> None:
    [fault] = faults_in({variable: text})
    assert fault.startswith(f"{variable}: {message}")


def test_a_faulty_item_of_a_list_is_reported_with_its_position() -> None:
    [fault] = faults_in({"SLOTGATE_SERVER__CORS_ORIGINS": '["https://a", 5]'})
    assert fault == "SLOTGATE_SERVER__CORS_ORIGINS[1]: must be text, not 5"


def test_a_check_across_settings_is_reported_under_the_variable() -> None:
    [fault] = faults_in({"SLOTGATE_SERVER__HOST": "0.0.0.0"})
    assert fault.startswith("SLOTGATE_SERVER__HOST: ")


def test_a_section_that_is_not_a_table_is_reported_once() -> None:
    assert faults_in({"SLOTGATE_SERVER__PORT": "1"}, server=5) == [
        "server: must be a table, written [server], not 5"
    ]


def test_without_a_file_the_environment_alone_cannot_name_a_backend() -> None:
    with pytest.raises(Exception, match=r"backend: at least one \[\[backend\]\] is needed"):
        load(None, {"SLOTGATE_SERVER__PORT": "1"})


@pytest.mark.parametrize(("name", "written"), [("team-a", "TEAM_A"), ("a.b:C9", "A_B_C9"), ("é", "_")])
def test_a_name_in_variables_is_upper_case_letters_digits_and_underscores(name: str, written: str) -> None:
    assert in_variables(name) == written


def test_a_backend_s_key_comes_from_its_variable() -> None:
    [backend] = parsed({"LLAMA_KEY": "secret"}, backend=[{**BACKEND, "api_key_env": "LLAMA_KEY"}]).backends
    assert backend.api_key({"LLAMA_KEY": "secret"}) == "secret"
    assert parsed().backends[0].api_key({}) is None


@pytest.mark.parametrize("key", [None, "", "se\ncret", " secret", "sécret"])
def test_a_backend_s_key_that_is_missing_or_cannot_be_sent_is_a_fault(key: str | None) -> None:
    environ = {} if key is None else {"LLAMA_KEY": key}
    [fault] = faults_of({"backend": [{**BACKEND, "api_key_env": "LLAMA_KEY"}]}, environ)
    assert fault.startswith('backend "gpu0".api_key_env: the environment variable LLAMA_KEY ')
    assert "cret" not in fault
