"""llama-swap, if a binary is on the PATH. The "model" that it starts is a process that sleeps."""

from __future__ import annotations

from bench.install import on_path
from bench.peers.peer import Launch, Peer, Site

__all__ = ["PEER"]

_CONFIGURATION = """\
logLevel: error
models:
  bench:
    cmd: sleep infinity
    proxy: {upstream}
    checkEndpoint: /health
    concurrencyLimit: 4096
"""


def _launch(site: Site) -> Launch:
    configuration = site.write("llama-swap.yaml", _CONFIGURATION.format(upstream=site.upstream))
    argv = [site.program, "-config", configuration, "-listen", f"127.0.0.1:{site.port}"]
    return Launch(argv, {"GOMAXPROCS": "1"})


PEER = Peer(
    name="llama-swap",
    about="llama-swap in Go, GOMAXPROCS=1",
    install=on_path("llama-swap"),
    launch=_launch,
)
