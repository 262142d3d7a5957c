"""The gateways of the comparison, one file for each, in the order of the report."""

from __future__ import annotations

from bench.peers import (
    caddy,
    envoy,
    haproxy,
    litellm,
    llama_swap,
    naive,
    nginx,
    paddler,
    portkey,
    python_floor,
    sglang_router,
    slotgate,
    slotgate_debian,
)
from bench.peers.peer import Launch, Peer, Site

__all__ = ["PEERS", "QUICK", "Launch", "Peer", "Site"]

PEERS = (
    nginx.PEER,
    python_floor.PEER,
    slotgate.PEER,
    slotgate_debian.PEER,
    haproxy.PEER,
    envoy.PEER,
    sglang_router.PEER,
    caddy.PEER,
    portkey.PEER,
    naive.PEER,
    litellm.PEER,
    llama_swap.PEER,
    paddler.PEER,
)
QUICK = ("nginx", "slotgate", "naive")
"""`direct` is always measured, because the others are compared with it."""
