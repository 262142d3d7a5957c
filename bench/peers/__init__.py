"""The gateways of the comparison, one file each, in the order of the report."""

from __future__ import annotations

from bench.peers import naive, nginx, slotgate
from bench.peers.peer import Launch, Peer, Site

__all__ = ["PEERS", "QUICK", "Launch", "Peer", "Site"]

PEERS = (nginx.PEER, slotgate.PEER, naive.PEER)
QUICK = ("nginx", "slotgate", "naive")
"""Direct is always measured: it is what the others are compared with."""
