"""The upstream side: connections to backends that read ahead and report completion by themselves."""

from gateway.upstream.connection import End, Sink
from gateway.upstream.transport import Exchange, Outgoing, UpstreamTransport

__all__ = ["End", "Exchange", "Outgoing", "Sink", "UpstreamTransport"]
