"""slotgate as it is normally used, with one worker: key, admission, token counts, rewritten names."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.peers.peer import Launch, Peer, Site
from slotgate.gateway.auth.keys import hash_key, new_key

__all__ = ["PEER"]

_CONFIGURATION = """\
[[model]]
name = "bench"
upstream_name = "upstream"

[[tenant]]
name = "bench"
key_hashes = ["{key_hash}"]

[[backend]]
name = "upstream"
url = "{upstream}"
models = ["bench"]
"""


def _install(_: Path) -> str:
    return sys.executable


def _launch(site: Site) -> Launch:
    key = new_key()
    text = _CONFIGURATION.format(key_hash=hash_key(key), upstream=site.upstream)
    argv = [site.program, "-m", "slotgate", "serve", "--config", site.write("slotgate.toml", text)]
    env = {
        "SLOTGATE_SERVER__PORT": str(site.port),
        "SLOTGATE_USAGE__STORE": f"sqlite:///{site.folder / 'slotgate.db'}",
    }
    return Launch(argv, env, headers=(("Authorization", f"Bearer {key}"),))


PEER = Peer(
    name="slotgate",
    about="key, admission, metering and rewriting on, one worker",
    install=_install,
    launch=_launch,
    version=lambda program: [program, "-m", "slotgate", "--version"],
)
