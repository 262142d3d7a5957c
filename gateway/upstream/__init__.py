"""HTTP connections to backends, which read ahead and report by themselves when a response is complete."""

from __future__ import annotations

from slotgate.gateway.upstream.address import BackendAddress
from slotgate.gateway.upstream.request import UpstreamRequest
from slotgate.gateway.upstream.sink import End, Sink
from slotgate.gateway.upstream.transport import (
    MAY_SEND_TWICE,
    SENT_TWICE,
    UpstreamExchange,
    UpstreamTransport,
)

__all__ = [
    "MAY_SEND_TWICE",
    "SENT_TWICE",
    "BackendAddress",
    "End",
    "Sink",
    "UpstreamExchange",
    "UpstreamRequest",
    "UpstreamTransport",
]
