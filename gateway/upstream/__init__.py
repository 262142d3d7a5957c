"""The upstream side: connections to backends that read ahead and report completion by themselves."""

from slotgate.gateway.upstream.connection import End, Sink
from slotgate.gateway.upstream.transport import Exchange, Outgoing, UpstreamTransport

__all__ = ["End", "Exchange", "Outgoing", "Sink", "UpstreamTransport"]
