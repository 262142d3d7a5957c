"""Checks that compare several settings."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.configurations import BACKEND, digest, faults_in, faults_of, parsed


@pytest.mark.parametrize("kind", ["tenant", "backend"])
def test_a_repeated_name_is_a_fault(kind: str) -> None:
    tables = {
        "tenant": [{"name": "x", "key_hashes": []}, {"name": "x", "key_hashes": []}],
        "backend": [{**BACKEND, "name": "x"}, {"name": "x", "url": "http://other"}],
    }
    assert faults_in(**{kind: tables[kind]}) == [f"{kind}[1].name: is already the name of {kind}[0]"]


@pytest.mark.parametrize(
    ("models", "fault"),
    [
        ([{"name": "a"}, {"name": "a"}], "model[1].name: is already the name of model[0]"),
        (
            [{"name": "a", "aliases": ["b"]}, {"name": "b"}],
            'model "a".aliases[0]: is already the name of model[1]',
        ),
        (
            [{"name": "a", "aliases": ["x"]}, {"name": "b", "aliases": ["x"]}],
            'model "b".aliases[0]: is already a name of the model "a"',
        ),
        ([{"name": "a", "aliases": ["a"]}], 'model "a".aliases[0]: is already the name of model[0]'),
    ],
)
def test_a_public_name_of_two_models_is_a_fault(models: list[object], fault: str) -> None:
    assert faults_in(model=models) == [fault]


def test_a_key_used_twice_is_a_fault() -> None:
    faults = faults_in(
        server={"operator_key_hashes": [digest("a")]},
        tenant=[
            {"name": "t", "key_hashes": [digest("b"), digest("b")]},
            {"name": "u", "key_hashes": [digest("a"), digest("b")]},
        ],
    )
    assert faults == [
        'tenant "t".key_hashes[1]: is already a key of the tenant "t"',
        'tenant "u".key_hashes[0]: is already the operator\'s key',
        'tenant "u".key_hashes[1]: is already a key of the tenant "t"',
    ]


@pytest.mark.parametrize("key_hash", ["", "a", "A" * 64, "g" * 64, "a" * 65, "a" * 64 + "\n", "a" * 63 + "é"])
def test_a_key_hash_is_64_lower_case_hex_digits(key_hash: str) -> None:
    [fault] = faults_in(tenant=[{"name": "t", "key_hashes": [key_hash]}])
    assert fault.startswith('tenant "t".key_hashes[0]: must be a key\'s sha256 in 64 lower-case hex digits')


def test_a_tenant_without_keys_needs_an_empty_list() -> None:
    [fault] = faults_in(tenant=[{"name": "t"}])
    assert fault == 'tenant "t": needs key_hashes; an empty list shuts the tenant out'
    assert faults_in(tenant=[{"name": "t", "key_hashes": []}]) == []


def test_at_least_one_backend_is_needed() -> None:
    assert faults_of({}) == ["backend: at least one [[backend]] is needed"]
    assert faults_of({"backend": []}) == ["backend: at least one [[backend]] is needed"]


@pytest.mark.parametrize(
    "given", [{}, {"url": "http://a", "command": ["llama-server"]}, {"url": "", "command": []}]
)
def test_a_backend_needs_either_a_url_or_a_command(given: dict[str, object]) -> None:
    faults = faults_of({"backend": [{"name": "x", **given}]})
    assert faults == ['backend "x": needs either url or command, not both']


@pytest.mark.parametrize("key", ["load", "idle_unload_s", "group", "start_timeout_s"])
def test_process_settings_beside_a_url_are_refused(key: str) -> None:
    value = {"load": "start", "idle_unload_s": 0, "group": "", "start_timeout_s": 5}[key]
    faults = faults_of({"backend": [{**BACKEND, key: value}]})
    assert faults == [f'backend "gpu0".{key}: applies only to a backend with a command, not with a url']


@pytest.mark.parametrize("argument", ["--host", "--port", "--api-key", "--api-key-file", "--port=80"])
def test_an_argument_that_the_gateway_adds_is_refused(argument: str) -> None:
    [fault] = faults_of({"backend": [{"name": "x", "command": ["llama-server", argument, "CANARY"]}]})
    assert fault.startswith('backend "x".command[1]: must not have --')
    assert "CANARY" not in fault


@pytest.mark.parametrize("command", [[""], ["llama-server", "a\0b"]])
def test_an_argument_that_no_process_can_have_is_refused(command: list[str]) -> None:
    [fault] = faults_of({"backend": [{"name": "x", "command": command}]})
    assert "must be text that is not empty" in fault


def test_two_backends_with_one_url_are_a_fault() -> None:
    faults = faults_of({"backend": [BACKEND, {"name": "again", "url": f"{BACKEND['url']}/"}]})
    assert faults == ['backend "again".url: is already the url of backend[0]']


def test_an_undeclared_group_is_a_fault() -> None:
    faults = faults_of({"backend": [{"name": "x", "command": ["llama-server"], "group": "gpu"}]})
    assert 'backend "x".group: is not the name of a [[group]]' in faults


def test_a_backend_on_demand_must_list_its_models() -> None:
    [fault] = faults_of({"backend": [{"name": "x", "command": ["llama-server"], "load": "demand"}]})
    assert fault.startswith('backend "x".models: is needed with load = "demand"')


def test_a_group_must_not_start_more_than_it_may_load() -> None:
    members = [{"name": name, "command": ["llama-server"], "group": "gpu"} for name in ("a", "b")]
    [fault] = faults_of({"backend": members, "group": [{"name": "gpu"}]})
    assert fault == 'group "gpu".max_loaded: is 1, but 2 backends of the group have load = "start": a, b'
    assert faults_of({"backend": members, "group": [{"name": "gpu", "max_loaded": 2}]}) == []


def test_a_declared_model_that_no_backend_serves_is_a_fault() -> None:
    backend = {**BACKEND, "models": ["b"]}
    faults = faults_of({"backend": [backend], "model": [{"name": "a"}, {"name": "b"}]})
    assert faults == ['model "a".name: is not in the models of any backend']


def test_a_tenant_s_unknown_model_is_a_fault_if_all_models_are_listed() -> None:
    tenant = {"name": "t", "key_hashes": [], "models": ["qwen", "gpt-4o", "other", "*"]}
    model = {"name": "qwen3", "aliases": ["gpt-4o"]}
    told = {**BACKEND, "models": ["qwen3", "other"]}
    faults = faults_of({"backend": [told], "model": [model], "tenant": [tenant]})
    assert faults == ['tenant "t".models[0]: no backend serves qwen; did you mean qwen3?']
    assert faults_of({"backend": [BACKEND], "model": [model], "tenant": [tenant]}) == []


def test_an_alias_in_a_backend_s_models_is_a_fault() -> None:
    faults = faults_of(
        {
            "backend": [{**BACKEND, "models": ["qwen3", "gpt-4o"]}],
            "model": [{"name": "qwen3", "aliases": ["gpt-4o"]}],
        }
    )
    assert faults == ['backend "gpu0".models[1]: is an alias: write the name of its model, "qwen3"']


def test_a_pattern_in_a_tenant_s_models_is_a_fault() -> None:
    [fault] = faults_in(tenant=[{"name": "t", "key_hashes": [], "models": ["qwen*"]}])
    assert "must be the name of a model, or \"*\" for all, not 'qwen*'" in fault


def test_a_stream_buffer_larger_than_the_total_is_a_fault() -> None:
    faults = faults_in(streaming={"stream_buffer_bytes": 200_000, "stream_buffers_total_bytes": 100_000})
    assert faults == [
        "streaming.stream_buffer_bytes: must be at most stream_buffers_total_bytes (100000), not 200000"
    ]


def test_a_default_answer_length_above_the_limit_is_a_fault() -> None:
    tenant = {"name": "t", "key_hashes": [], "max_tokens_default": 11, "max_tokens_limit": 10}
    assert faults_in(tenant=[tenant]) == [
        'tenant "t".max_tokens_default: must be at most max_tokens_limit (10), not 11'
    ]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A folder with cert.pem, its key.pem, the same key with a password, and an unrelated key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    for line in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem",
        "rsa -aes128 -passout pass:word -in key.pem -out locked.pem",
        "genrsa -out other.pem 2048",
    ):
        subprocess.run([openssl, *line.split()], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def tls(folder: Path, cert: str, key: str) -> dict[str, object]:
    return {"tls_cert": f"{folder / cert}", "tls_key": f"{folder / key}"}


def test_a_certificate_with_its_key_is_accepted(certificate: Path) -> None:
    assert parsed(server=tls(certificate, "cert.pem", "key.pem")).server.tls_cert.endswith("cert.pem")


@pytest.mark.parametrize(
    ("cert", "key"), [("cert.pem", "other.pem"), ("cert.pem", "locked.pem"), ("key.pem", "cert.pem")]
)
def test_a_certificate_without_its_usable_key_is_a_fault(certificate: Path, cert: str, key: str) -> None:
    assert faults_in(server=tls(certificate, cert, key)) == [
        "server.tls_cert: and tls_key must be a PEM certificate and its key, without a password"
    ]


def test_certificate_files_that_cannot_be_read_are_both_reported(tmp_path: Path) -> None:
    faults = faults_in(server=tls(tmp_path, "no.pem", "none.pem"))
    assert [fault.split(": ")[:2] for fault in faults] == [
        ["server.tls_cert", "cannot be read"],
        ["server.tls_key", "cannot be read"],
    ]


@pytest.mark.parametrize(("given", "missing"), [("tls_cert", "tls_key"), ("tls_key", "tls_cert")])
def test_a_certificate_or_key_alone_is_a_fault(given: str, missing: str) -> None:
    assert faults_in(server={given: "x.pem"}) == [
        f"server.{missing}: is needed: set both tls_cert and tls_key"
    ]


@pytest.mark.parametrize(
    ("host", "url", "refused"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080", True),
        ("127.0.0.1", "http://localhost:8080/", True),
        ("localhost", "http://[::1]:8080", True),
        ("0.0.0.0", "http://127.0.0.1:8080", True),
        ("127.0.0.1", "http://127.0.0.1:8081", False),
        ("127.0.0.1", "http://gpu.example:8080", False),
        ("127.0.0.1", "unix:/run/8080", False),
    ],
)
def test_backend_at_the_address_of_the_gateway_is_a_fault(host: str, url: str, *, refused: bool) -> None:
    server = {"host": host, "port": 8080, "allow_anonymous": True}
    faults = faults_of({"server": server, "backend": [{"name": "x", "url": url}]})
    assert faults == (['backend "x".url: is the address of this gateway'] if refused else [])
