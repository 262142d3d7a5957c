"""`isolate_cache = true` is accepted where the backends can isolate, and refused elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from slotgate.gateway.http.request_body import with_members
from slotgate.gateway.settings import Settings, SettingsError, check_isolation_goes_on, isolating, parse
from tests.support.configurations import digest, faults_of

OWN: dict[str, Any] = {"name": "own", "command": ["llama-server", "-m", "a.gguf"], "models": ["m"]}
FOREIGN: dict[str, Any] = {"name": "far", "url": "http://127.0.0.1:8081", "models": ["n"]}


def tenant(isolate: object = True, **members: object) -> dict[str, Any]:
    return {"name": "a", "key_hashes": [digest("a")], "isolate_cache": isolate, **members}


def refused(*backends: dict[str, Any], **members: object) -> list[str]:
    return faults_of({"tenant": [tenant(**members)], "backend": list(backends)})


def test_isolation_is_accepted_if_the_gateway_starts_all_backends_of_the_tenant() -> None:
    assert refused(OWN) == []
    assert refused(OWN, FOREIGN, models=["m"]) == []


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        (FOREIGN, 'backend "far", which the gateway does not start itself'),
        ({**FOREIGN, "models": []}, 'backend "far", which the gateway does not start itself'),
        ({**OWN, "shared": True}, 'backend "own", which is shared with other programs'),
        (
            {**OWN, "command": ["llama-server", "-cram", "64"]},
            'backend "own", whose command sets --cache-ram',
        ),
        ({**OWN, "command": ["llama-server", "--cache-ram=64"]}, "whose command sets --cache-ram"),
        (
            {**OWN, "command": ["llama-server", "-mm", "eyes.gguf"]},
            "--mmproj, and then llama-server erases no slot",
        ),
        ({**OWN, "slots": 1}, 'backend "own", which sets slots'),
    ],
)
def test_isolation_is_refused_on_a_backend_that_cannot_isolate(backend: dict[str, object], why: str) -> None:
    [fault] = refused(backend)
    assert fault.startswith('tenant "a".isolate_cache: is not possible on ')
    assert why in fault


def test_best_effort_is_accepted_everywhere() -> None:
    assert refused(OWN, FOREIGN, isolate="best-effort") == []


def test_a_backend_without_listed_models_may_serve_any_model() -> None:
    [fault] = refused(OWN, {**FOREIGN, "models": []}, models=["m"])
    assert "far" in fault


def settings(*tenants: dict[str, Any]) -> Settings:
    return parse({"tenant": tenants, "backend": [OWN, FOREIGN]}, {})


def test_only_backends_of_isolated_tenants_have_to_isolate() -> None:
    assert isolating(settings(tenant(models=["m"]))) == {"own"}
    assert isolating(settings(tenant("best-effort"))) == set()
    assert isolating(settings(tenant(False))) == set()


def test_a_reload_cannot_add_isolation_to_running_processes() -> None:
    without, with_it = settings(tenant(False)), settings(tenant(models=["m"]))
    check_isolation_goes_on(frozenset(), with_it)
    check_isolation_goes_on({"own"}, without)
    with pytest.raises(SettingsError, match=r'tenant "a".isolate_cache: needs a new process of own'):
        check_isolation_goes_on({"own"}, with_it)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b"{}", b'{"id_slot":3,"n":1}'),
        (b" { }\n", b' { "id_slot":3,"n":1}'),
        (b"{" + b" " * 100 + b"}", b"{" + b" " * 100 + b'"id_slot":3,"n":1}'),
        (b'{"a":1}', b'{"a":1,"id_slot":3,"n":1}'),
        (b'{"a":1} \r\n', b'{"a":1,"id_slot":3,"n":1}'),
        (b'{"a":{}}', b'{"a":{},"id_slot":3,"n":1}'),
        (b'{"id_slot":7}', b'{"id_slot":7,"id_slot":3,"n":1}'),
    ],
)
def test_members_are_added_at_the_end_of_a_document(document: bytes, expected: bytes) -> None:
    assert b"".join(with_members(document, {"id_slot": 3, "n": 1})) == expected


def test_a_document_to_which_nothing_is_added_stays_as_it_is() -> None:
    assert with_members(b'{"a":1} ', {}) == (b'{"a":1} ',)
