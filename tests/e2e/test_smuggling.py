"""No request can hide in another one, whether the gateway is reached directly or through nginx or haproxy."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from slotgate.gateway.processes.ports import free_port
from slotgate.gateway.server.listener import Listener
from slotgate.gateway.settings import ServerSettings
from tests.support.client import RawClient, request_bytes
from tests.support.smuggling import FORMS, HIDDEN, PLAIN

pytestmark = pytest.mark.anyio

READ_BEHIND_THE_BODY = {"an underscore", "a chunk size with many zeros"}
"""Here the body is empty by every rule, so what follows it is a second request and not a hidden one."""
READ_AS_A_BODY = {
    "GET with a length",
    "GET with chunks",
    "an upgrade with a body",
    "a length that Connection names",
    "Expect with a length",
}
NEVER_WHOLE = {"an oversized chunk"}
"""The body goes on until it is too large for the endpoint."""
ANSWER_S = 0.2
"""Seconds in which a connection has to answer. Only a request that never ends takes them."""


class Server:
    """Records what the gateway's own listener takes for requests: the path, and what a proxy says it is."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []
        self.url = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the rest of the body was refused
            size, more = size + len(message["body"]), message["more_body"]
        fronts = [value.decode() for name, value in scope["headers"] if name == b"x-front"]
        self.seen.append((scope["path"], fronts[-1] if fronts else "", size))
        path = scope["path"].encode()
        head = [(b"content-length", b"%d" % len(path))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": path})


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    listener = Listener(server, ServerSettings(port=0))
    await listener.listen()
    server.url = listener.url
    try:
        yield server
    finally:
        listener.close()
        await asyncio.sleep(0)
        if listener.connections.tasks:
            await asyncio.wait(listener.connections.tasks, timeout=1)


async def answers(url: str, data: bytes) -> tuple[bytes, bool]:
    """Send bytes; return what comes back, and whether the connection was closed."""
    host, _, port = url.rpartition("/")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    got = b""
    try:
        writer.write(data)
        async with asyncio.timeout(ANSWER_S):
            while piece := await reader.read(65536):
                got += piece
        return got, True
    except TimeoutError:
        return got, False
    except ConnectionError:
        return got, True
    finally:
        writer.transport.abort()


@pytest.mark.slow
async def test_every_form_is_refused_or_read_by_the_one_rule_for_it() -> None:
    await asyncio.gather(*map(_refused_or_read, FORMS))


async def _refused_or_read(name: str) -> None:
    async with serving() as server:
        got, closed = await answers(server.url, FORMS[name])
        seen = [path for path, *_ in server.seen]
        if name in NEVER_WHOLE:
            assert (got, closed, seen) == (b"", False, []), name
        elif name in READ_AS_A_BODY:
            assert [(path, size) for path, _, size in server.seen] == [("/open", len(HIDDEN))], name
        elif name in READ_BEHIND_THE_BODY:
            assert seen == ["/open", "/hidden"], name
        else:
            assert closed, name
            assert got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 ", b"HTTP/1.1 505 ")), name
            assert seen == [], name


NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr emerg;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  ignore_invalid_headers off;
  underscores_in_headers on;
  upstream gateway {{ server 127.0.0.1:{upstream}; keepalive 1; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://gateway;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header X-Front $uri;
      proxy_request_buffering off;
      proxy_read_timeout 1s;
    }}
  }}
}}
"""
HAPROXY = """\
global
  maxconn 512
defaults
  mode http
  timeout connect 1s
  timeout client 1s
  timeout server 1s
frontend front
  bind 127.0.0.1:{port}
  http-request set-header X-Front %[path]
  default_backend gateway
backend gateway
  http-reuse always
  server one 127.0.0.1:{upstream} maxconn 4
"""
PROXIES: dict[str, tuple[str, Callable[[str, str], list[str]]]] = {
    "nginx": (NGINX, lambda program, folder: [program, "-p", folder, "-e", "stderr", "-c", f"{folder}/conf"]),
    "haproxy": (HAPROXY, lambda program, folder: [program, "-q", "-db", "-f", f"{folder}/conf"]),
}


@asynccontextmanager
async def proxy(kind: str, folder: Path, upstream: str) -> AsyncIterator[str]:
    """Run a proxy whose clients share its few connections to the server."""
    program = shutil.which(kind) or shutil.which(kind, path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip(f"{kind} is not installed")
    text, command = PROXIES[kind]
    port = free_port()
    (folder / "conf").write_text(text.format(folder=folder, port=port, upstream=upstream.rpartition(":")[2]))
    process = subprocess.Popen(  # noqa: ASYNC220  it takes a millisecond
        command(program, str(folder)), stderr=subprocess.PIPE
    )
    try:
        for _ in range(400):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                assert process.poll() is None, process.communicate()
                await asyncio.sleep(0.005)
            else:
                writer.close()
                break
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROXIES)
async def test_a_proxy_and_the_gateway_see_the_same_requests(kind: str, tmp_path: Path) -> None:
    async with serving() as server, proxy(kind, tmp_path, server.url) as front:
        await answers(front, PLAIN)
        assert server.seen == [("/open", "/open", 3)], "the proxy passes requests on"
        await asyncio.gather(*(_probed(front, number, form) for number, form in enumerate(FORMS.values())))
        assert [request for request in server.seen if request[0] != request[1]] == []
        assert {f"/probe-{number}" for number in range(len(FORMS))} <= {path for path, *_ in server.seen}


async def _probed(front: str, number: int, form: bytes) -> None:
    """Send a form, and then a request of another client, which must get its own answer."""
    await answers(front, form)
    async with await RawClient.connect(front) as client:
        await client.send(request_bytes("GET", f"/probe-{number}"))
        await client.head()
        assert await client.body() == b"/probe-%d" % number
