"""What values of different keys have to say to each other."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.configurations import BACKEND, digest, faults_in, faults_of, parsed


@pytest.mark.parametrize("kind", ["tenant", "backend"])
def test_a_name_is_used_once(kind: str) -> None:
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
def test_a_public_name_means_one_model(models: list[object], fault: str) -> None:
    assert faults_in(model=models) == [fault]


def test_a_key_belongs_to_one_tenant_or_to_the_operator() -> None:
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


def test_a_tenant_without_keys_says_so() -> None:
    [fault] = faults_in(tenant=[{"name": "t"}])
    assert fault == 'tenant "t": needs key_hashes; an empty list shuts the tenant out'
    assert faults_in(tenant=[{"name": "t", "key_hashes": []}]) == []


def test_at_least_one_backend_is_needed() -> None:
    assert faults_of({}) == ["backend: at least one [[backend]] is needed"]
    assert faults_of({"backend": []}) == ["backend: at least one [[backend]] is needed"]


@pytest.mark.parametrize(
    "given", [{}, {"url": "http://a", "command": ["llama-server"]}, {"url": "", "command": []}]
)
def test_a_backend_has_either_a_url_or_a_command(given: dict[str, object]) -> None:
    faults = faults_of({"backend": [{"name": "x", **given}]})
    assert faults == ['backend "x": needs exactly one of url and command']


@pytest.mark.parametrize("key", ["load", "idle_unload_s", "group", "start_timeout_s"])
def test_what_only_a_command_has_is_refused_beside_a_url(key: str) -> None:
    value = {"load": "start", "idle_unload_s": 0, "group": "", "start_timeout_s": 5}[key]
    faults = faults_of({"backend": [{**BACKEND, key: value}]})
    assert faults == [f'backend "gpu0".{key}: is for a backend with a command: this one has a url']


@pytest.mark.parametrize("argument", ["--host", "--port", "--api-key", "--api-key-file", "--port=80"])
def test_a_command_leaves_out_what_the_gateway_adds(argument: str) -> None:
    [fault] = faults_of({"backend": [{"name": "x", "command": ["llama-server", argument, "CANARY"]}]})
    assert fault.startswith('backend "x".command[1]: must not have --')
    assert "CANARY" not in fault


@pytest.mark.parametrize("command", [[""], ["llama-server", "a\0b"]])
def test_a_command_s_words_are_ones_that_a_process_can_have(command: list[str]) -> None:
    [fault] = faults_of({"backend": [{"name": "x", "command": command}]})
    assert "must be text that is not empty" in fault


def test_two_backends_are_two_servers() -> None:
    faults = faults_of({"backend": [BACKEND, {"name": "again", "url": f"{BACKEND['url']}/"}]})
    assert faults == ['backend "again".url: is already the url of backend[0]']


def test_a_group_that_is_used_is_declared() -> None:
    faults = faults_of({"backend": [{"name": "x", "command": ["llama-server"], "group": "gpu"}]})
    assert 'backend "x".group: is not the name of a [[group]]' in faults


def test_a_process_that_does_not_run_cannot_be_asked_for_its_models() -> None:
    [fault] = faults_of({"backend": [{"name": "x", "command": ["llama-server"], "load": "demand"}]})
    assert fault.startswith('backend "x".models: is needed with load = "demand"')


def test_no_more_of_a_group_start_than_may_be_loaded() -> None:
    members = [{"name": name, "command": ["llama-server"], "group": "gpu"} for name in ("a", "b")]
    [fault] = faults_of({"backend": members, "group": [{"name": "gpu"}]})
    assert fault == 'group "gpu".max_loaded: is 1, and 2 of the group have load = "start": a, b'
    assert faults_of({"backend": members, "group": [{"name": "gpu", "max_loaded": 2}]}) == []


def test_a_declared_model_is_served_by_a_backend() -> None:
    backend = {**BACKEND, "models": ["b"]}
    faults = faults_of({"backend": [backend], "model": [{"name": "a"}, {"name": "b"}]})
    assert faults == ['model "a".name: is in no backend\'s list of models']


def test_a_tenant_s_models_exist_where_that_can_be_known() -> None:
    tenant = {"name": "t", "key_hashes": [], "models": ["qwen", "gpt-4o", "other", "*"]}
    model = {"name": "qwen3", "aliases": ["gpt-4o"]}
    told = {**BACKEND, "models": ["qwen3", "other"]}
    faults = faults_of({"backend": [told], "model": [model], "tenant": [tenant]})
    assert faults == ['tenant "t".models[0]: no backend serves qwen; did you mean qwen3?']
    assert faults_of({"backend": [BACKEND], "model": [model], "tenant": [tenant]}) == []


def test_a_backend_lists_names_not_aliases() -> None:
    faults = faults_of(
        {
            "backend": [{**BACKEND, "models": ["qwen3", "gpt-4o"]}],
            "model": [{"name": "qwen3", "aliases": ["gpt-4o"]}],
        }
    )
    assert faults == ['backend "gpu0".models[1]: is an alias: write the name of the model, "qwen3"']


def test_a_tenant_s_models_are_names_not_patterns() -> None:
    [fault] = faults_in(tenant=[{"name": "t", "key_hashes": [], "models": ["qwen*"]}])
    assert "must be the name of a model, or \"*\" for all, not 'qwen*'" in fault


def test_one_stream_s_buffer_fits_into_all_streams_buffers() -> None:
    faults = faults_in(streaming={"stream_buffer_bytes": 200_000, "stream_buffers_total_bytes": 100_000})
    assert faults == [
        "streaming.stream_buffer_bytes: must be at most stream_buffers_total_bytes (100000), not 200000"
    ]


def test_the_default_length_of_an_answer_is_at_most_the_limit() -> None:
    tenant = {"name": "t", "key_hashes": [], "max_tokens_default": 11, "max_tokens_limit": 10}
    assert faults_in(tenant=[tenant]) == [
        'tenant "t".max_tokens_default: must be at most max_tokens_limit (10), not 11'
    ]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A folder with cert.pem, its key.pem, the same key with a password, and another key."""
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
        "server.tls_cert: and tls_key must be a PEM certificate and its own key, without a password"
    ]


def test_certificate_files_that_cannot_be_read_are_both_reported(tmp_path: Path) -> None:
    faults = faults_in(server=tls(tmp_path, "no.pem", "none.pem"))
    assert [fault.split(": ")[:2] for fault in faults] == [
        ["server.tls_cert", "cannot be read"],
        ["server.tls_key", "cannot be read"],
    ]


@pytest.mark.parametrize(("given", "missing"), [("tls_cert", "tls_key"), ("tls_key", "tls_cert")])
def test_a_certificate_and_its_key_go_together(given: str, missing: str) -> None:
    assert faults_in(server={given: "x.pem"}) == [
        f"server.{missing}: is needed: tls_cert and tls_key go together"
    ]
