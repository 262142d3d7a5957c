"""The SGLang model gateway (Rust) over one worker, round robin, one runtime thread."""

from __future__ import annotations

from bench.install import wheel
from bench.peers.peer import Launch, Peer, Site
from bench.ports import free_port

__all__ = ["PEER"]


def _launch(site: Site) -> Launch:
    argv = [site.program, "launch", "--host", "127.0.0.1", "--port", str(site.port)]
    worker = ["--worker-urls", site.upstream, "--policy", "round_robin", "--log-level", "warn"]
    metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    return Launch([*argv, *worker, *metrics], {"TOKIO_WORKER_THREADS": "1"})


PEER = Peer(
    name="sglang-router",
    about="SGLang's router in Rust, one worker thread",
    install=wheel("bin/sglang-router", "sglang-router==0.3.2"),
    launch=_launch,
)
