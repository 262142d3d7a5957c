"""The usual style of a Python gateway: `naive_app` under uvicorn, with the same C parser and event loop."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.peers.peer import Launch, Peer, Site

__all__ = ["PEER"]


def _install(_: Path) -> str:
    return sys.executable


def _launch(site: Site) -> Launch:
    server = [site.program, "-m", "uvicorn", "bench.peers.naive_app:app", "--host", "127.0.0.1"]
    options = ["--http", "httptools", "--loop", "uvloop", "--no-access-log", "--log-level", "warning"]
    return Launch([*server, "--port", str(site.port), *options], {"BENCH_UPSTREAM": site.upstream})


PEER = Peer(
    name="naive",
    about="BaseHTTPMiddleware, StreamingResponse, httpx aiter_lines, json a token; no admission, no keys",
    install=_install,
    launch=_launch,
    version=lambda program: [program, "-m", "uvicorn", "--version"],
)
