"""The Portkey gateway on Node, one process.

It listens on all interfaces and has no option to change that, so a module that is loaded before it sets
loopback.
"""

from __future__ import annotations

from pathlib import Path

from bench.install import npm
from bench.peers.peer import Launch, Peer, Site

__all__ = ["PEER"]

_PACKAGE = {
    "private": True,
    "dependencies": {"@portkey-ai/gateway": "1.15.2"},
    # Newer versions answer 500 "TypeError: immutable" (Portkey-AI/gateway#1389).
    "overrides": {"@hono/node-server": "1.14.1"},
}


_ON_LOOPBACK = """\
const net = require("node:net");
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...others) {
  const callback = others.find((other) => typeof other === "function");
  if (typeof port !== "number") return listen.call(this, port, ...others);
  return listen.call(this, port, "127.0.0.1", callback);
};
"""


def _launch(site: Site) -> Launch:
    headers = (
        ("x-portkey-provider", "openai"),
        ("x-portkey-custom-host", f"{site.upstream}/v1"),
        ("Authorization", "Bearer none"),
    )
    argv = [
        "node",
        "--require",
        site.write("on_loopback.cjs", _ON_LOOPBACK),
        site.program,
        f"--port={site.port}",
        "--headless",
    ]
    return Launch(argv, {"NODE_ENV": "production"}, headers)


PEER = Peer(
    name="portkey",
    about="Portkey's gateway on Node",
    install=npm(_PACKAGE, "@portkey-ai/gateway/build/start-server.js"),
    launch=_launch,
    version=lambda program: [
        "node",
        "-p",
        f"require({str(Path(program).parents[1] / 'package.json')!r}).version",
    ],
)
