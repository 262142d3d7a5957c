"""Keys of clients, operators and backends are shown nowhere, however a request ends.

The tests keep all output of the gateway and search it at the end: the log from the lowest level on, answers
with their heads, requests to backends, the repr of objects, and arguments of processes. Eight characters of a
key in a place where they do not belong are a leak.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from slotgate.gateway.auth.keys import KeyRing, hash_key
from slotgate.gateway.cli import main
from slotgate.gateway.settings import Settings, SettingsError
from slotgate.gateway.tools.run.packages import Installed
from tests.support.answer import WholeResponse
from tests.support.client import RawClient, request_bytes
from tests.support.connection import ReceivedRequest
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import H, T, answer, chunked, error_body
from tests.support.processes import children_of, command_line, environment_of
from tests.support.script import Fin, Rst, Script, Stall, Write, stream
from tests.support.scripted import ScriptedUpstream
from tests.support.served import served_gateway

pytestmark = pytest.mark.anyio

NAMES = ("a", "second", "expired", "limited", "poor", "narrow", "unknown", "operator", "backend")
LOUD = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "asyncio", "httpx", "httpcore")


def key_of(name: str) -> bytes:
    """Return a key of its own for each name, the same in every run."""
    return b"sg-" + base64.urlsafe_b64encode(hashlib.sha256(b"canary " + name.encode()).digest()).rstrip(b"=")


def leaked(text: bytes | str, names: Iterable[str] = NAMES) -> list[str]:
    """Return the names whose keys are visible in the text, even in part."""
    seen = text if isinstance(text, bytes) else text.encode(errors="surrogateescape")
    return [name for name in names if any(part in seen for part in parts_of(key_of(name)[3:]))]


def parts_of(key: bytes) -> set[bytes]:
    return {key[start : start + 8] for start in range(len(key) - 7)}


def bearer(name: str) -> bytes:
    return b"authorization: Bearer " + key_of(name)


ECHO = b"Bearer " + key_of("backend")
SCRIPTS: dict[str, Script] = {
    "hang": [Write(H + chunked(T("a"))), Stall()],
    "reset": [Rst()],
    "reset inside": [Write(H + chunked(T("a"))), Rst()],
    "truncated": [Write(H + chunked(T("a"))), Fin()],
    "no http": [Write(ECHO + b"\r\n\r\n")],
    "no json": stream(T("a"), b"data: {broken\n\n"),
    "silent": [Stall()],
    **{
        f"{status}": [Write(answer(status, error_body(status, f"bad: {ECHO.decode()}", "odd")))]
        for status in (302, 400, 401, 403, 404, 422, 429, 500, 503)
    },
    "plain 500": [Write(answer(500, b"bad: " + ECHO, content_type=b"text/plain"))],
    "header": [
        Write(answer(400, error_body(400, "no", "odd"), b"authorization: " + ECHO, b"x-key: " + ECHO))
    ],
    "error event": stream(T("a"), b'data: {"error":{"code":500,"message":"bad: ' + ECHO + b'"}}\n\n'),
}


def tenant(name: str, **members: object) -> dict[str, Any]:
    return {"name": f"t-{name}", "key_hashes": [hash_key(key_of(name))], **members}


TENANTS = [
    {
        "name": "t-a",
        "key_hashes": [hash_key(key_of("a"))],
        "key": [
            {"name": "laptop", "hash": hash_key(key_of("second"))},
            {"name": "old", "hash": hash_key(key_of("expired")), "expires": datetime.date(2020, 1, 1)},
        ],
    },
    tenant("limited", requests_per_minute=1, max_concurrent=1),
    tenant("poor", tokens_per_day=1),
    tenant("narrow", models=[], max_concurrent=1),
]
SERVER = {
    "port": 0,
    "operator_key_hashes": [hash_key(key_of("operator"))],
    "max_body_bytes": 4000,
    "body_timeout_s": 0.2,
    "max_header_bytes": 4096,
}


def settings(url: str, *, tenants: list[dict[str, Any]] = TENANTS, **sections: Any) -> Settings:  # noqa: ANN401
    backend = {"name": "gpu0", "url": url, "models": ["m"], "api_key_env": "LLAMA_KEY"}
    return settings_for(
        environ={"LLAMA_KEY": key_of("backend").decode()},
        **{"server": SERVER, "backend": [backend], "tenant": tenants, **sections},
    )


class Eavesdropper:
    """Sends requests and keeps the answers: their status, or the code of the error."""

    def __init__(self, gateway: Gateway, fu: ScriptedUpstream) -> None:
        self.gateway = gateway
        self.fu = fu
        self.heard: list[bytes] = []

    async def send(self, method: str, path: str, *headers: bytes, **what: Any) -> str:  # noqa: ANN401
        async with await self.gateway.client() as client:
            await client.send(request_bytes(method, path, *headers, **what))
            return await self.read(client)

    async def read(self, client: RawClient) -> str:
        head = await client.head()
        got = WholeResponse(client.status, head, await client.body())
        self.heard += [repr(head).encode(), got.body]
        reason = got.header(b"x-slotgate-reason")
        return reason.decode() if reason else str(got.status)

    async def ask(self, name: str, text: str = "hi", *headers: bytes, **members: object) -> str:
        """Send a request with the key in all the places where clients put theirs."""
        key = key_of(name)
        places = [bearer(name), b"x-api-key: " + key, b"cookie: key=" + key, b"api-key: " + key]
        path = f"{CHAT}?key={key.decode()}"
        return await self.send("POST", path, *places, *headers, json=chat(text, **members))

    async def holding(self, name: str = "a", text: str = "hang", *headers: bytes) -> RawClient:
        client = await self.gateway.client()
        await client.send(request_bytes("POST", CHAT, bearer(name), *headers, json=chat(text)))
        return client

    def check(self) -> None:
        gateway = self.gateway
        assert leaked(b"".join(self.heard)) == []
        assert leaked(gateway.log.text) == []
        fleet, server, runtime = gateway.fleet, gateway.server, gateway.parts.runtime
        things = [gateway.parts, runtime, fleet, runtime.scheduler, runtime.limiter, runtime.in_flight]
        things += [fleet.catalogue, runtime.queue]
        things += [*fleet.backends.values(), *fleet.probers.values(), *runtime.in_flight.contexts]
        things += [gateway.app, server, server.connections, *self.fu.llama.__dict__.values()]
        for backend in fleet.backends.values():
            things += [backend.whole_request("/", (b"{}",), []), backend.stream_request("/", (b"{}",), [])]
        assert leaked("\n".join(map(repr, things))) == []
        sent = [request.raw for request in self.fu.requests]
        clients = [name for name in NAMES if name != "backend"]
        assert leaked(b"".join(sent), clients) == []


@asynccontextmanager
async def listening(
    caplog: pytest.LogCaptureFixture,
    slots: int = 2,
    load: Callable[[], Settings] | None = None,
    **sections: Any,  # noqa: ANN401
) -> AsyncIterator[Eavesdropper]:
    for name in LOUD:
        caplog.set_level(logging.DEBUG, logger=name)

    def script(request: ReceivedRequest) -> Script | None:
        return SCRIPTS.get(request.json()["messages"][0]["content"])

    fu = ScriptedUpstream(script, llama=LlamaLike(slots))
    async with fu:
        given = settings(fu.url, **sections)
        environ = {"LLAMA_KEY": key_of("backend").decode()}
        async with running_gateway(given, load=load, environ=environ) as gateway:
            ears = Eavesdropper(gateway, fu)
            yield ears
            ears.check()


def test_a_leaked_key_would_be_found() -> None:
    assert leaked(b"x" + key_of("a")[9:17] + b"y") == ["a"]
    assert leaked(f"{NAMES}") == []


async def test_scenario_113_no_key_is_seen_when_a_request_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening(caplog) as ears:
        said = {
            "none": await ears.send("POST", CHAT, json=chat()),
            "unknown": await ears.ask("unknown"),
            "expired": await ears.ask("expired"),
            "two": await ears.send("GET", "/v1/models", bearer("a"), b"x-api-key: " + key_of("second")),
            "scheme": await ears.send("GET", "/v1/models", b"authorization: Basic " + key_of("a")),
            "operator": await ears.send("GET", "/admin/status", bearer("a")),
            "operator as client": await ears.ask("operator"),
            "model": await ears.ask("narrow", model="m"),
            "no model": await ears.ask("a", model="none"),
            "path": await ears.send("GET", "/nowhere?key=" + key_of("a").decode(), bearer("a")),
            "method": await ears.send("DELETE", CHAT + "?key=" + key_of("a").decode(), bearer("a")),
            "late": await ears.send("POST", CHAT, bearer("a"), b"content-length: 10"),
            "big": await ears.send("POST", CHAT, bearer("a"), body=key_of("a") * 100),
            "packed": await ears.send("POST", CHAT, bearer("a"), b"content-encoding: gzip", json=chat()),
            "header": await ears.send("GET", "/v1/models", b"authorization: Bearer " + key_of("a") * 100),
            "json": await ears.send("POST", CHAT, bearer("a"), body=b'{"a' + key_of("a")),
            "member": await ears.ask("a", n="two"),
            "head": await ears.send("GET", "/v1/ models", bearer("a")),
            "request": await ears.send("POST", "/v1/requests/none/cancel", bearer("a")),
            "reload": await ears.send("POST", "/admin/reload", bearer("operator")),
            "first": await ears.ask("limited", stream=False),
            "rate": await ears.ask("limited"),
            "poor": await ears.ask("poor", stream=False),
            "quota": await ears.ask("poor"),
        }
        assert said == {
            **dict.fromkeys(["none", "unknown", "expired", "two", "scheme"], "invalid_api_key"),
            **dict.fromkeys(["operator", "operator as client"], "invalid_api_key"),
            "model": "model_not_allowed",
            "no model": "model_not_found",
            "path": "unknown_path",
            "method": "method_not_allowed",
            "late": "body_timeout",
            "big": "body_too_large",
            "packed": "unsupported_content_encoding",
            "header": "headers_too_large",
            "json": "invalid_json",
            "member": "invalid_request",
            "head": "invalid_request",
            "request": "request_not_found",
            "reload": "nothing_to_reload",
            "rate": "rate_limited",
            "quota": "quota_exceeded",
            "first": "200",
            "poor": "200",
        }


@pytest.mark.slow
async def test_scenario_113_no_key_is_seen_when_a_request_waits_runs_and_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = {"max_queue_per_tenant": 1, "queue_timeout_s": 1.0}
    async with listening(caplog, slots=1, admission=queue) as ears:
        scheduler = ears.gateway.scheduler
        running = await ears.holding("a", "hang", b"x-request-id: r1", b"x-slotgate-supersede: editor")
        await ears.gateway.until(lambda: scheduler.leases == 1)
        waiting = await ears.holding("limited")
        await ears.gateway.until(lambda: scheduler.depth == 1)
        ears.check()
        assert await ears.ask("limited") == "rate_limited"
        assert await ears.read(waiting) == "queue_timeout"
        waiting.close()
        waiting = await ears.holding("second")
        await ears.gateway.until(lambda: scheduler.depth == 1)
        assert await ears.ask("a") == "queue_full"
        waiting.reset()
        await ears.gateway.until(lambda: scheduler.depth == 0)
        later = await ears.holding("a", "hang", b"x-slotgate-supersede: editor")
        assert await ears.read(running) == "200", "it was told inside its stream"
        assert b"superseded" in ears.heard[-1]
        await ears.gateway.until(lambda: scheduler.leases == 1)
        later.reset()
        await ears.gateway.until(lambda: scheduler.leases == 0)
        for client in (running, waiting, later):
            client.close()
        outcomes = [line["outcome"] for line in ears.gateway.log.of("request")]
        assert outcomes.count("client_gone") == 2
        ears.gateway.parts.drain()
        assert await ears.ask("a") == "draining"


@pytest.mark.parametrize("way", SCRIPTS)
@pytest.mark.parametrize("streaming", [True, False])
async def test_scenario_113_no_key_is_seen_whatever_the_backend_does(
    way: str, *, streaming: bool, caplog: pytest.LogCaptureFixture
) -> None:
    limits = {"first_byte_s": 0.1, "idle_s": 0.1}
    async with listening(caplog, timeouts=limits) as ears:
        await ears.ask("a", way, stream=streaming)
        assert leaked(ears.fu.generations[0].raw) == ["backend"], "it has the key that is its own"


async def test_scenario_113_no_key_is_seen_in_a_fault_of_ours(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(scope: dict[str, Any], *_: object, **__: object) -> None:
        headers = dict(scope["headers"])
        raise LookupError("no such thing", len(headers))

    monkeypatch.setattr("slotgate.gateway.handlers.generate.upstream_headers", fails)
    async with listening(caplog) as ears:
        assert await ears.ask("a") == "internal_error"
        assert "no such thing" in ears.gateway.log.text
        ears.check()
        ears.gateway.log.expect("internal error")


# Revoked keys, and faults of the configuration

Wrong = Callable[[str], dict[str, Any]]
WRONG: dict[str, Wrong] = {
    "the key for its hash": lambda key: {"tenant": [{"name": "x", "key_hashes": [key]}]},
    "a list of keys": lambda key: {"tenant": [{"name": "x", "key": [key]}]},
    "a key as text": lambda key: {"tenant": [{"name": "x", "key": key}]},
    "a named key": lambda key: {"tenant": [{"name": "x", "key": [{"name": "ci", "hash": key}]}]},
    "the operator's": lambda key: {"server": {"operator_key_hashes": [key]}},
    "a backend's key": lambda key: backend_with(api_key=key),
    "for the variable": lambda key: backend_with(api_key_env=key),
    "for the variable, a word": lambda key: backend_with(api_key_env=key.replace("-", "_")),
    "in the URL": lambda key: backend_with(url=f"http://:{key}@127.0.0.1:1"),
    "in the query": lambda key: backend_with(url=f"http://127.0.0.1:1/?key={key}"),
    "in the command": lambda key: {"backend": [{"name": "x", "command": ["llama", "--api-key", key]}]},
}


def backend_with(**members: str) -> dict[str, Any]:
    return {"backend": [{"name": "x", "url": "http://127.0.0.1:1", **members}]}


@pytest.mark.parametrize("case", WRONG)
async def test_scenario_113_a_key_in_a_wrong_place_is_not_repeated_by_check_or_reload(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    key = key_of("unknown").decode()
    document = {"backend": [{"name": "x", "url": "http://127.0.0.1:1"}], **WRONG[case](key)}
    file = tmp_path / "slotgate.toml"
    file.write_text(toml(document))
    with pytest.raises(SystemExit) as ended:
        main(["check", "--config", str(file)])
    output = capsys.readouterr()
    assert ended.value.code == 2
    assert output.err
    assert leaked(output.out + output.err) == []
    parts = [part for part in parts_of(key[3:].encode()) if part.replace(b"-", b"_") in output.err.encode()]
    assert parts == []

    def load() -> Settings:
        return settings_for(**document)

    async with listening(caplog, load=load) as ears:
        assert await ears.send("POST", "/admin/reload", bearer("operator")) == "invalid_configuration"
        with pytest.raises(SettingsError) as fault:
            load()
        assert leaked(repr(fault.value) + str(fault.value)) == []


def toml(document: dict[str, Any]) -> str:
    """Write a document as TOML, as far as JSON can express one: values of tables, and lists of tables."""
    lines = []
    for name, tables in document.items():
        for table in tables if isinstance(tables, list) else [tables]:
            lines.append(f"[[{name}]]" if isinstance(tables, list) else f"[{name}]")
            lines += [f"{key} = {inline(value)}" for key, value in table.items()]
    return "\n".join(lines)


def inline(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(one)}" for key, one in value.items()) + "}"
    return orjson.dumps(value).decode()


async def test_a_tenant_with_several_keys_loses_the_one_that_is_revoked_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = {"tenants": TENANTS}
    fu_url: list[str] = []

    def load() -> Settings:
        return settings(fu_url[0], **now)

    async with listening(caplog, slots=1, load=load) as ears:
        fu_url.append(ears.fu.url)
        scheduler = ears.gateway.scheduler
        running = await ears.holding("second")
        await ears.gateway.until(lambda: scheduler.leases == 1)
        waiting, kept = await ears.holding("second"), await ears.holding("a", "hi")
        await ears.gateway.until(lambda: scheduler.depth == 2)
        now["tenants"] = [tenant("a"), *TENANTS[1:]]
        assert await ears.send("POST", "/admin/reload", bearer("operator")) == "200"
        assert await ears.read(waiting) == "invalid_api_key"
        assert await ears.ask("second") == "invalid_api_key"
        running.reset()
        assert await ears.read(kept) == "200"
        assert await ears.ask("a", stream=False) == "200"
        for client in (running, waiting, kept):
            client.close()


def test_objects_built_from_keys_do_not_show_them() -> None:
    given = settings("http://127.0.0.1:1")
    ring = KeyRing(given.tenants, given.server.operator_key_hashes)
    known = ring.find(key_of("a"))
    assert known is not None
    assert leaked(f"{given!r} {given} {ring!r} {known!r} {given.tenants!r}") == []


# Processes


@pytest.mark.real
async def test_scenario_113_no_key_is_in_the_arguments_of_a_process(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of the machine could read it there."""
    server = Installed().server({})
    assert server is not None
    command = [str(server[0]), "--model", str(tiny_model), "--threads", "1", "--parallel", "1"]
    backends = [{"name": "own", "command": command, "models": ["m"]}]
    monkeypatch.setenv("HF_TOKEN", key_of("unknown").decode())
    configuration = toml(
        {
            "server": {"operator_key_hashes": [hash_key(key_of("operator"))]},
            "tenant": [tenant("a")],
            "backend": backends,
        }
    )
    async with served_gateway(tmp_path, configuration) as served:
        async with await served.client() as client:
            await client.post(CHAT, chat(stream=False, max_tokens=3), bearer("a"))
            assert client.status == 200, await client.body()
        [child] = children_of(served.process.pid)
        environment = environment_of(child)
        own = environment[b"LLAMA_API_KEY"]
        assert len(own) > 30
        arguments = " ".join([*command_line(child), *command_line(served.process.pid)])
        assert leaked(repr(environment)) == []
        async with await RawClient.connect(served.url) as client:
            await client.request("GET", "/admin/status", bearer("operator"))
            status = await client.body()
    log = served.log.read_bytes()
    assert leaked(arguments) == leaked(log) == leaked(status) == []
    assert not [part for part in parts_of(own) if part in arguments.encode() + log + status]
