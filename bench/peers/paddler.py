"""Paddler 1.x, if a binary is on the PATH: a balancer, and the agent that reports slots to it.

Paddler 2 generates tokens itself, without a llama-server behind it, so it cannot be compared.
"""

from __future__ import annotations

from bench.install import on_path
from bench.peers.peer import Launch, Peer, Site
from bench.ports import free_port

__all__ = ["PEER"]

_SCRIPT = """\
"$0" agent --management-addr {management} --external-llamacpp-addr {llama} --local-llamacpp-addr {llama} &
exec "$0" balancer --management-addr {management} --reverseproxy-addr {own}
"""


def _launch(site: Site) -> Launch:
    script = _SCRIPT.format(
        llama=f"127.0.0.1:{site.upstream_port}",
        management=f"127.0.0.1:{free_port()}",
        own=f"127.0.0.1:{site.port}",
    )
    return Launch(["sh", "-c", script, site.program])


PEER = Peer(
    name="paddler",
    about="Paddler 1.x in Rust, balancer and agent",
    install=on_path("paddler"),
    launch=_launch,
)
