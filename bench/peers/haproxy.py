"""haproxy as an HTTP proxy, one thread."""

from __future__ import annotations

from bench.install import debian
from bench.peers.peer import Launch, Peer, Site

__all__ = ["PEER"]

_CONFIGURATION = """\
global
    nbthread 1
    maxconn 8192
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout http-request 30s
    timeout http-keep-alive 1h
    option http-keep-alive
    # Send at once instead of waiting for a fuller packet.
    option http-no-delay
    http-reuse always
    retries 2
frontend chat
    bind 127.0.0.1:{port}
    default_backend llama
backend llama
    # llama-server closes idle connections after 5 s.
    server llama 127.0.0.1:{upstream_port} pool-purge-delay 2s pool-max-conn 64
"""


def _launch(site: Site) -> Launch:
    text = _CONFIGURATION.format(port=site.port, upstream_port=site.upstream_port)
    return Launch([site.program, "-db", "-f", site.write("haproxy.cfg", text)])


PEER = Peer(
    name="haproxy",
    about="reverse proxy in C, one thread",
    install=debian("haproxy", "haproxy"),
    launch=_launch,
    version=lambda program: [program, "-v"],
)
