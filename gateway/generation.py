"""One request that takes a slot, ready to be admitted and sent; and what its end leaves in the books."""

from __future__ import annotations

from dataclasses import dataclass, field

from admission import Demand, Lease
from gateway.chat import Upgrade
from gateway.chunks import Identity
from gateway.context import RequestContext
from gateway.metering import Meter

__all__ = ["Generation"]


@dataclass(frozen=True, slots=True)
class Generation:
    context: RequestContext
    path: str
    body: bytes
    headers: list[tuple[bytes, bytes]]
    """For the backend."""
    identity: Identity
    demand: Demand
    choices: int = 1
    running_usage: bool = False
    """The client asked for the usage so far with every chunk."""
    upgrade: Upgrade = field(default_factory=Upgrade)

    def book(self, meter: Meter, lease: Lease | None) -> None:
        """The request is over: note its token counts, and charge its tenant what it really cost."""
        context = self.context
        context.prompt_tokens = meter.prompt_tokens
        context.cached_tokens = meter.cached_tokens
        context.completion_tokens = meter.completed
        context.partial = not meter.exact
        if meter.exact and lease is not None:
            lease.settle_cost(meter.prompt_tokens + meter.completed)
