"""Settings of features that are not built are refused by name, and no other setting is."""

from __future__ import annotations

import pytest

from slotgate.gateway.settings import UNSUPPORTED, Settings
from slotgate.gateway.settings.schema import keys, spot
from tests.support.configurations import BACKEND, digest, faults_of, with_backend

COMMAND = {"name": "x", "command": ["llama-server"]}
TENANT = {"name": "t", "key_hashes": [digest("a")]}
REFUSED: dict[str, dict[str, object]] = {
    "admission.store": {"admission": {"store": "redis://host:6379/0"}},
}


@pytest.mark.parametrize("place", UNSUPPORTED)
def test_an_unsupported_setting_is_refused(place: str) -> None:
    faults = faults_of(with_backend(**REFUSED[place]))
    assert any(fault.endswith(f"is not supported yet: {UNSUPPORTED[place]}") for fault in faults)


def test_the_default_of_an_unsupported_setting_is_accepted() -> None:
    tenant = {**TENANT, "key": [], "isolate_cache": False}
    command = {**COMMAND, "load": "start", "idle_unload_s": 0, "group": ""}
    data = {
        "admission": {"store": "memory"},
        "tenant": [tenant],
        "backend": [command],
        "group": [],
    }
    assert faults_of(data) == []


@pytest.mark.parametrize("place", UNSUPPORTED)
def test_every_unsupported_setting_exists(place: str) -> None:
    top, _, key = place.partition(".")
    assert top in keys(Settings)
    found = spot((top,))
    assert found is not None
    assert found.table is not None
    assert not key or key in keys(found.table)


def test_every_other_setting_is_accepted() -> None:
    data = {
        "tenant": [
            {
                **TENANT,
                "weight": 2,
                "models": ["qwen3"],
                "priority": "batch",
                "max_concurrent": 4,
                "max_tokens_default": 1024,
                "max_tokens_limit": 8192,
                "allow_id_slot": True,
            }
        ],
        "model": [{"name": "qwen3", "aliases": ["gpt-4o"], "upstream_name": "qwen3-30b a3b"}],
        "backend": [
            {**BACKEND, "models": ["qwen3"], "slots": 4, "health_interval_s": 2, "api_key_env": "LLAMA_KEY"},
            {
                **COMMAND,
                "models": ["smollm2"],
                "start_timeout_s": 300,
                "load": "demand",
                "idle_unload_s": 60,
                "group": "gpu",
            },
        ],
        "group": [{"name": "gpu", "max_loaded": 2}],
        "admission": {"on_store_loss": "refuse", "lease_ttl_s": 10},
    }
    assert faults_of(data, {"LLAMA_KEY": "k"}) == []
