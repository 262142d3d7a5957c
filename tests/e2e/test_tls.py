"""TLS without a proxy in front: only the ends of connections differ."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.support.client import RawClient
from tests.support.gateway import CHAT, Gateway, chat, running_gateway, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, H, T, chunked
from tests.support.script import Flood, Script, Stall, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio


@dataclass(frozen=True, slots=True)
class Certificate:
    tls_cert: str
    tls_key: str


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Make a certificate for 127.0.0.1 that is signed by itself."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    made = Certificate(str(folder / "cert.pem"), str(folder / "key.pem"))
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    out = ["-keyout", made.tls_key, "-out", made.tls_cert]
    subprocess.run([program, "req", *kind, *names, *out], check=True, capture_output=True)
    return made


@asynccontextmanager
async def serving(
    fu: ScriptedUpstream,
    certificate: Certificate,
    *,
    streaming: dict[str, Any] | None = None,
    **server: object,
) -> AsyncIterator[tuple[Gateway, RawClient]]:
    """Run a gateway that speaks TLS, and connect a client to it."""
    tls = {"port": 0, "tls_cert": certificate.tls_cert, "tls_key": certificate.tls_key}
    settings = settings_for(fu.url, server=tls | server, streaming=streaming or {})
    async with running_gateway(settings) as gateway:
        assert gateway.url.startswith("https://127.0.0.1:")
        port = int(gateway.url.rpartition(":")[2])
        trust = ssl.create_default_context(cafile=certificate.tls_cert)
        async with RawClient(*await asyncio.open_connection("127.0.0.1", port, ssl=trust)) as client:
            yield gateway, client


async def test_streams_and_answers_on_one_connection(certificate: Certificate) -> None:
    fu = ScriptedUpstream(llama=LlamaLike(1, tokens=3))
    async with fu, serving(fu, certificate) as (_, client):
        await client.post(CHAT, chat())
        assert [frame.data async for frame in client.frames()][-1] == DONE
        await client.request("GET", "/health")
        assert client.status == 200


async def test_a_client_that_leaves_is_noticed_at_once(certificate: Certificate) -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H + chunked(T("a"))), Stall()]})
    async with fu, serving(fu, certificate) as (_, client):
        await client.post(CHAT, chat())
        client.close()
        await fu.until(lambda: not fu.generations[0].connection.is_open, within=0.1)


async def test_a_client_that_does_not_read_is_cut(certificate: Certificate) -> None:
    script: Script = [Write(H), Flood(64 * 1024 * 1024)]
    fu = ScriptedUpstream(scripts={CHAT: script})
    stalled = {"client_stall_timeout_s": 0.2}
    async with fu, serving(fu, certificate, streaming=stalled) as (gateway, client):
        await client.post(CHAT, chat())
        client.stop_reading()
        assert await gateway.server.connections.gone(within=2)


async def test_a_refusal_arrives_and_the_connection_closes(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS cannot close half of a connection, so it is closed when the time for the rest of the request is
    over.
    """
    monkeypatch.setattr("slotgate.gateway.server.connection.LINGER_S", 0.1)
    fu = ScriptedUpstream()
    async with fu, serving(fu, certificate, max_header_bytes=16384) as (_, client):
        await client.send(b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 40000)
        await client.head()
        assert client.status == 431
        await client.body()
        assert await client.eof(within=1)


async def test_an_idle_connection_is_closed_in_its_time(certificate: Certificate) -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu, certificate, keep_alive_s=0.1) as (_, client):
        await client.request("GET", "/health")
        await client.body()
        assert await client.eof(within=1)


async def test_a_connection_without_a_handshake_is_closed_in_its_time(certificate: Certificate) -> None:
    fu = ScriptedUpstream()
    async with fu, serving(fu, certificate, header_timeout_s=0.2) as (gateway, _):
        async with await RawClient.connect(gateway.url) as silent:
            assert await silent.eof(within=1)


async def test_the_cookie_of_an_operator_is_for_tls_only(certificate: Certificate) -> None:
    fu = ScriptedUpstream()
    hashes = [hash_key("sg-operator")]
    async with fu, serving(fu, certificate, operator_key_hashes=hashes) as (_, client):
        head = await client.post("/admin/session", {"key": "sg-operator"}, b"origin: https://127.0.0.1")
    assert client.status == 200
    assert (head.get(b"set-cookie") or b"").endswith(b"; HttpOnly; SameSite=Strict; Secure")
