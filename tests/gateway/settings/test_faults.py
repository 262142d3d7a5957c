"""Faults are reported all at once, each with a place that the operator finds, and without secrets."""

from __future__ import annotations

import pytest

from slotgate.gateway.settings import BackendSettings, Settings, SettingsError, TenantSettings, parse
from slotgate.gateway.settings.sections import ServerSettings
from tests.support.configurations import BACKEND, digest, faults_in, faults_of, parsed

PLAIN_KEY = "sg-CANARY-CANARY-CANARY"


def test_all_faults_are_reported_at_once() -> None:
    faults = faults_of(
        {
            "server": {"port": -1, "prot": 1, "tls_cert": "/nowhere/cert.pem"},
            "streaming": {"keepalive": "ping"},
            "timeouts": {"idle_s": 0, "stream_buffer_bytes": 1},
            "tenant": [
                {"name": "a", "key_hashes": [digest("a")], "weight": 0},
                {"name": "b", "key_hashes": [digest("a")], "requests_per_minute": 0},
            ],
            "backend": [{"name": "x"}, {"url": "http://a"}],
            "surprise": {},
        },
        {"SLOTGATE_ADMISSION__MAX_QUEUE": "many", "SLOTGATE_SERVER__PROT": "1"},
    )
    assert {
        "server.port",
        "server.prot",
        "server.tls_key",
        "streaming.keepalive",
        "timeouts.idle_s",
        "timeouts.stream_buffer_bytes",
        'tenant "a".weight',
        'tenant "b".key_hashes[0]',
        'tenant "b".requests_per_minute',
        'backend "x"',
        "backend[1].name",
        "surprise",
        "SLOTGATE_ADMISSION__MAX_QUEUE",
        "SLOTGATE_SERVER__PROT",
    } == {fault.split(": ")[0] for fault in faults}


def test_the_error_has_one_line_per_fault() -> None:
    with pytest.raises(SettingsError) as caught:
        parse({"server": {"port": -1, "host\nx": "a\nb"}, "timeouts": {"total_s": "a\nb"}}, {})
    assert 4 == len(caught.value.faults) == len(str(caught.value).splitlines())


def test_a_table_is_shown_by_its_name_or_else_by_its_position() -> None:
    tables = [{"name": "a", "weight": 0}, {"weight": 0}, {"name": 5}, {"name": "twice"}, {"name": "twice"}]
    places = {fault.split(": ")[0] for fault in faults_in(tenant=tables)}
    assert {'tenant "a".weight', "tenant[1].name", "tenant[1].weight", "tenant[2].name"} <= places
    assert "tenant[4].name" in places


@pytest.mark.parametrize(
    ("tables", "fault"),
    [
        ({"server": {"prot": 1}}, "server.prot: is not a known setting; did you mean port?"),
        ({"servers": {}}, "servers: is not a known setting; did you mean server?"),
        ({"zzz": 1}, "zzz: is not a known setting"),
        ({"a b": 1}, "'a b': is not a known setting"),
        (
            {"backend": [{**BACKEND, "modles": []}]},
            'backend "gpu0".modles: is not a known setting; did you mean models?',
        ),
        ({"server": 5}, "server: must be a table, written [server], not 5"),
        ({"backend": BACKEND}, "backend: must be a table, written [[backend]], not a table"),
        ({"tenant": [5]}, "tenant[0]: must be a table, written [[tenant]], not 5"),
    ],
)
def test_an_unknown_key_or_table_gets_a_suggestion(tables: dict[str, object], fault: str) -> None:
    assert [fault] == faults_in(**tables)


def test_a_faulty_value_does_not_cause_further_faults() -> None:
    """Both backends have an unusable url or command. It would be wrong to report that one is missing."""
    faults = faults_of({"backend": [{"name": "x", "url": 5}, {"name": "y", "command": "llama-server"}]})
    assert [fault.split(": ")[0] for fault in faults] == ['backend "x".url', 'backend "y".command']


def test_a_long_value_is_shortened() -> None:
    [fault] = faults_in(streaming={"keepalive": "x" * 5000})
    assert len(fault) < 200


def test_a_key_written_in_place_of_its_hash_is_not_repeated() -> None:
    data = {
        "server": {"operator_key_hashes": [PLAIN_KEY], "cors_origins": []},
        "tenant": [{"name": "a", "key_hashes": PLAIN_KEY}, {"name": "b", "key_hashes": [PLAIN_KEY]}],
        "admission": {"store": f"redis://:{PLAIN_KEY}@host"},
        "backend": [{"name": "x", "url": f"http://user:{PLAIN_KEY}@host"}],
    }
    faults = faults_of(data, {"SLOTGATE_TENANT__A__KEY_HASHES": PLAIN_KEY})
    assert len(faults) == 5
    assert PLAIN_KEY not in "\n".join(faults)


def test_hashes_are_hidden_in_repr() -> None:
    settings = parsed(
        server={"operator_key_hashes": [digest("f")]},
        tenant=[{"name": "a", "key_hashes": [digest("a"), digest("b")]}],
    )
    for text in (repr(settings), str(settings), f"{settings.tenants}", repr(settings.server)):
        assert digest("a") not in text
        assert digest("f") not in text
    assert "key_hashes=<2 hidden>" in repr(settings.tenants[0])
    assert "operator_key_hashes=()" in repr(ServerSettings())


def test_settings_cannot_be_changed() -> None:
    settings = parsed(tenant=[{"name": "a", "key_hashes": []}])
    with pytest.raises(ValueError, match="frozen"):
        settings.server.port = 1
    assert hash(settings)


def test_settings_can_be_built_in_code_with_the_names_of_the_file() -> None:
    settings = Settings(
        backend=(BackendSettings(name="gpu0", url="http://127.0.0.1:8081"),),
        tenant=(TenantSettings(name="a"),),
    )
    assert [backend.name for backend in settings.backends] == ["gpu0"]
    assert not settings.anonymous
    assert Settings().anonymous
