"""The lower bound of Python: `python_floor_app` under uvicorn, with the same interpreter, parser and loop.

Any Python gateway needs this time, above all to the first token, before it does work of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.peers.peer import Launch, Peer, Site

__all__ = ["PEER"]


def _install(_: Path) -> str:
    return sys.executable


def _launch(site: Site) -> Launch:
    server = [site.program, "-m", "uvicorn", "bench.peers.python_floor_app:app", "--host", "127.0.0.1"]
    options = ["--http", "httptools", "--loop", "uvloop", "--ws", "none", "--lifespan", "off"]
    quiet = ["--no-access-log", "--no-proxy-headers", "--no-server-header", "--log-level", "warning"]
    return Launch([*server, "--port", str(site.port), *options, *quiet], {"BENCH_UPSTREAM": site.upstream})


PEER = Peer(
    name="python-floor",
    about="the least under uvicorn: a raw ASGI function that sends on bytes; no admission, no keys",
    install=_install,
    launch=_launch,
    version=lambda program: [program, "-m", "uvicorn", "--version"],
)
