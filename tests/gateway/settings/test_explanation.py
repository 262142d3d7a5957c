"""`slotgate check` explains a valid configuration."""

from __future__ import annotations

import pytest

from slotgate.gateway.settings import explain
from tests.support.configurations import BACKEND, digest, parsed


def test_listening_address_and_reach_are_explained() -> None:
    assert "http://127.0.0.1:8080, reachable from this machine only" in explain(parsed())
    everywhere = parsed(server={"host": "::", "port": 9000, "allow_anonymous": True})
    assert "http://[::]:9000, reachable from other machines too" in explain(everywhere)


def test_without_tenants_the_explanation_says_that_no_key_is_needed() -> None:
    text = explain(parsed(server={"allowed_hosts": ["gpu.lan"]}))
    assert "everyone who can reach it, without a key" in text
    assert "loopback names, gpu.lan" in text


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ([], "only inside the request; URLs that a backend would fetch are refused"),
        (["a.example", "*.b.example:81"], "URLs that backends fetch from a.example, *.b.example:81"),
        (["*"], "URLs that backends fetch from every host, also of its own network"),
    ],
)
def test_it_is_explained_from_where_backends_may_fetch_media(hosts: list[str], said: str) -> None:
    assert said in explain(parsed(server={"allowed_media_hosts": hosts}))


def test_tenants_are_explained_with_their_limits() -> None:
    text = explain(
        parsed(
            server={"operator_key_hashes": [digest("f")]},
            tenant=[
                {
                    "name": "team-a",
                    "key_hashes": [digest("a"), digest("b")],
                    "weight": 2,
                    "models": ["qwen3"],
                    "max_concurrent": 4,
                    "max_tokens_limit": 100,
                },
                {"name": "guests", "key_hashes": []},
            ],
        )
    )
    expected = "team-a: 2 keys; qwen3; interactive; weight 2; at most 4 requests at a time; "
    expected += "at most 100 tokens per answer"
    assert expected in text
    assert "guests: shut out, because it has no key" in text
    assert "operator: 1 key" in text


def test_limits_per_minute_and_per_day_are_explained() -> None:
    limits = {"requests_per_minute": 120, "tokens_per_minute": 9000, "tokens_per_day": 5_000_000}
    tenant = {"name": "team-a", "key_hashes": [digest("a")], **limits}
    said = explain(parsed(tenant=[tenant]))
    assert "120 requests per minute; 9000 tokens per minute; 5000000 tokens per day" in said


def test_backends_and_aliases_are_explained() -> None:
    text = explain(
        parsed(
            model=[{"name": "qwen3", "aliases": ["gpt-4o"]}],
            backend=[
                {**BACKEND, "models": ["qwen3"], "slots": 1},
                {"name": "local", "command": ["llama-server", "-m", "model.gguf"], "models": ["tiny"]},
            ],
        )
    )
    assert "gpu0 at http://127.0.0.1:8081: qwen3; 1 slot\n" in text
    assert "local started as llama-server: tiny; as many slots as it reports" in text
    assert "qwen3 also answers to gpt-4o" in text


def test_it_is_explained_whether_slots_share_a_context() -> None:
    others = [{"name": name, "url": f"http://127.0.0.1:808{port}"} for port, name in ((2, "b"), (3, "c"))]
    text = explain(
        parsed(backend=[{**BACKEND, "kv_unified": True}, {**others[0], "kv_unified": False}, others[1]])
    )
    assert "gpu0: its slots share one context\n" in text
    assert "b: its slots have a context each\n" in text
    assert "c: llama-server's log or command says if its slots share one context" in text
    assert "kv_unified = true or false states it" in text


def test_loading_and_groups_are_explained() -> None:
    own = {"command": ["llama-server"], "group": "gpu"}
    text = explain(
        parsed(
            backend=[
                {**own, "name": "a", "models": ["a"], "load": "demand", "idle_unload_s": 600},
                {**own, "name": "b"},
            ],
            group=[{"name": "gpu"}],
        )
    )
    assert "; loaded at the first request; in the group gpu; unloaded after 600 s without a" in text
    assert "group gpu: at most 1 loaded at a time" in text


def test_limits_of_queue_and_streams_are_explained() -> None:
    text = explain(
        parsed(
            admission={"max_queue": 7, "queue_timeout_s": 2.5, "max_queue_bytes": 2048},
            streaming={"keepalive": "off", "client_stall_timeout_s": 9},
            timeouts={"total_s": 100},
        )
    )
    assert "at most 7 requests per model; 2 KiB of request bodies in total" in text
    assert "each request waits at most 2.5 s" in text
    assert "no keep-alives" in text
    assert "disconnected after 9 s" in text
    assert "the whole answer within 100 s" in text


def test_hashes_are_not_shown() -> None:
    settings = parsed(
        server={"operator_key_hashes": [digest("f")]}, tenant=[{"name": "a", "key_hashes": [digest("a")]}]
    )
    assert digest("a") not in explain(settings)
    assert digest("f") not in explain(settings)


@pytest.mark.parametrize(
    ("store", "place"),
    [
        ("none", "no usage records"),
        ("sqlite:///slotgate.db", "in the file slotgate.db"),
        ("sqlite:////var/lib/usage.db", "in the file /var/lib/usage.db"),
        ("postgresql://me:s3cret@db:5433/usage?password=s3cret", "in postgresql://db:5433/usage"),
        ("postgresql:///usage?host=/run/s3cret", "in postgresql:///usage"),
    ],
)
def test_the_store_is_shown_without_its_password(store: str, place: str) -> None:
    text = explain(parsed(usage={"store": store}))
    assert text.endswith(f"{place}\n")
    assert "s3cret" not in text
