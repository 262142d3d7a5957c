"""Settings whose text has a format: hosts, origins, URLs, names."""

from __future__ import annotations

import pytest

from tests.support.configurations import BACKEND, digest, faults_in, faults_of, parsed


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "LocalHost"])
def test_a_loopback_host_needs_no_tenants(host: str) -> None:
    assert faults_in(server={"host": host}) == []


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "::ffff:127.0.0.1", "localhost.example"]
)
def test_any_other_host_needs_tenants_or_allow_anonymous(host: str) -> None:
    [fault] = faults_in(server={"host": host})
    assert fault.startswith("server.host: ")
    assert "allow_anonymous" in fault
    assert faults_in(server={"host": host, "allow_anonymous": True}) == []
    assert faults_in(server={"host": host}, tenant=[{"name": "a", "key_hashes": [digest("a")]}]) == []


@pytest.mark.parametrize(
    "host", ["", "http://x", "x:80", "[::1]", "a b", "a/b", "-x", "ä.example", "a..b", "x\n"]
)
def test_a_host_is_an_address_or_a_name(host: str) -> None:
    [fault] = faults_in(server={"host": host})
    assert "must be an IP address or a host name" in fault


@pytest.mark.parametrize(
    "origin",
    ["*", "https://chat.example.org", "http://localhost:3000", "http://[::1]:3000", "tauri://localhost"],
)
def test_an_origin_is_as_browsers_send_it(origin: str) -> None:
    assert (origin,) == parsed(server={"cors_origins": [origin]}).server.cors_origins


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "example.org",
        "https://",
        "https://a/",
        "https://a/b",
        "https://a:99999",
        "https://a b",
        "https://*.a.b",
    ],
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    [fault] = faults_in(server={"cors_origins": [origin]})
    assert fault.startswith("server.cors_origins[0]: must be ")


@pytest.mark.parametrize("origin", ["https://a:443", "http://a:80"])
def test_an_origin_with_the_default_port_is_refused(origin: str) -> None:
    [fault] = faults_in(server={"cors_origins": [origin]})
    assert "they leave out the default port" in fault


@pytest.mark.parametrize(
    ("host", "kept"),
    [
        ("*", "*"),
        ("Pics.Example.com", "pics.example.com"),
        ("*.example.com", "*.example.com"),
        ("*.example.com:8443", "*.example.com:8443"),
        ("10.0.0.1:080", "10.0.0.1:80"),
        ("localhost", "localhost"),
    ],
)
def test_a_media_host_is_a_name_or_all_names_of_a_domain(host: str, kept: str) -> None:
    assert parsed(server={"allowed_media_hosts": [host]}).server.allowed_media_hosts == (kept,)


@pytest.mark.parametrize(
    "host",
    [
        *("", "*.", "*:80", "**", "a.*", "*.*", "http://a", "a/", "a@b", "a b", "a.", "-a", "ä.example"),
        *("a:", "a:0", "a:65536", "a:x", "a:-1", "a:²", "[::1]", "::1", "*.0.0.1", "*.0x1", "a\n"),
    ],
)
def test_a_media_host_that_names_no_host_is_refused(host: str) -> None:
    [fault] = faults_in(server={"allowed_media_hosts": [host]})
    assert fault.startswith('server.allowed_media_hosts[0]: must be "*", host, host:port')


@pytest.mark.parametrize(
    ("url", "base_url", "socket"),
    [
        ("http://127.0.0.1:8081", "http://127.0.0.1:8081", None),
        ("https://gpu.example.org/", "https://gpu.example.org", None),
        ("http://[::1]:8081/llama/", "http://[::1]:8081/llama", None),
        ("unix:/run/llama.sock", "http://localhost", "/run/llama.sock"),
    ],
)
def test_a_backend_s_url_says_how_to_reach_it(url: str, base_url: str, socket: str | None) -> None:
    [backend] = parsed(backend=[{"name": "b", "url": url}]).backends
    assert (base_url, socket) == (backend.base_url, backend.unix_socket)


def test_a_backend_with_a_command_has_no_url_yet() -> None:
    [backend] = parsed(backend=[{"name": "b", "command": ["llama-server"]}]).backends
    assert backend.base_url is None
    assert backend.unix_socket is None


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8081",
        "ftp://a",
        "http://",
        "http://a:x",
        "http://a:99999",
        "http://[::1",
        "http://a b",
        "http://a\n",
        "http://ä",
        "http://a?x=1",
        "http://a#x",
        "http://a/v1",
        "http://a/v1/",
        "http://user@a",
        "unix:run.sock",
        "unix:/run\n",
    ],
)
def test_a_backend_s_url_that_cannot_be_reached_is_refused(url: str) -> None:
    [fault] = faults_of({"backend": [{**BACKEND, "url": url}]})
    assert fault.startswith('backend "gpu0".url: must be ')


@pytest.mark.parametrize("name", ["", " a", "a b", "a/b", "-a", "é", "a\n", "x" * 65])
def test_a_name_fits_into_logs_metrics_and_paths(name: str) -> None:
    [fault] = faults_of({"backend": [{**BACKEND, "name": name}]})
    assert ".name: must be 1 to 64 letters, digits and . _ : @ + - " in fault


@pytest.mark.parametrize("name", ["qwen3", "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", "gpt-4.1"])
def test_a_model_s_name_may_be_one_that_hubs_use(name: str) -> None:
    assert [name] == [model.name for model in parsed(model=[{"name": name}]).models]


@pytest.mark.parametrize("name", ["", "*", "a b", "/a", "a\u200b", "\u0301a", "é" * 257, "x" * 257])
def test_a_model_s_name_is_no_pattern_and_no_path(name: str) -> None:
    [fault] = faults_in(model=[{"name": name}])
    assert ".name: must be 1 to 256 letters, digits and . _ : @ + / - " in fault


@pytest.mark.parametrize("variable", ["LLAMA KEY", "1KEY", "A=B", "sg-a-key-itself"])
def test_the_variable_of_a_backend_s_key_is_a_name(variable: str) -> None:
    [fault] = faults_of({"backend": [{**BACKEND, "api_key_env": variable}]})
    assert fault.startswith('backend "gpu0".api_key_env: must be the name of an environment variable')


@pytest.mark.parametrize("name", ["org/model:tag@1+x", "é", "模型-7b", "मॉडल", "e\u0301", "Ω" * 256])
def test_a_model_s_name_may_have_letters_of_any_script(name: str) -> None:
    settings = parsed(model=[{"name": name, "aliases": [f"{name[:200]}/2"]}])
    assert settings.models[0].name == name
