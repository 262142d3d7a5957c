"""One request that takes a slot, ready to be admitted and sent; and what its end leaves in the books."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotgate.admission import Demand, Lease
from slotgate.gateway.api.chunks import Identity
from slotgate.gateway.api.dialects import Dialect, FrameOptions
from slotgate.gateway.api.endpoints import Door
from slotgate.gateway.api.prompt_prefix import Trail
from slotgate.gateway.api.token_usage import Meter
from slotgate.gateway.backends.prompt_sizes import PromptSizes
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.request_body import Body, with_members

__all__ = ["Generation"]


@dataclass(frozen=True, slots=True)
class Generation:
    context: RequestContext
    door: Door
    body: Body
    headers: list[tuple[bytes, bytes]]
    """For the backend."""
    identity: Identity
    demand: Demand
    options: FrameOptions
    supersedes: bytes = b""
    """The client's key under which the latest request wins; empty: none."""
    trail: Trail = field(default_factory=Trail)
    sizes: PromptSizes = field(default_factory=PromptSizes)
    """Learns from this request how long its model's prompts are."""
    limit_name: str = ""
    """The member that limits its answers."""
    queue_events: bool = False
    """The client wants to be told its place in the queue."""

    def body_for(self, lease: Lease) -> Body:
        """The body, with what the lease says: which slot to use, and how long an answer may be that has no
        limit."""
        if self.door.multipart:
            return self.body
        members = {}
        if len(lease.slots) == 1 and self.demand.numbered:
            members["id_slot"] = lease.slots[0]
        if lease.answer_limit is not None:
            members[self.limit_name] = lease.answer_limit
        [document] = self.body
        return with_members(bytes(document), members)

    def meter(self) -> Meter:
        return Meter(parts=self.options.parts)

    def dialect(self, meter: Meter) -> Dialect:
        return self.door.dialect(self.identity, meter, self.options)

    def book(self, meter: Meter, lease: Lease | None) -> None:
        """The request is over: note its token counts, and charge its tenant what it really cost."""
        context = self.context
        context.prompt_tokens = meter.prompt_tokens
        context.cached_tokens = meter.cached_tokens
        context.completion_tokens = meter.completed
        context.partial = not meter.exact
        if meter.exact and lease is not None:
            lease.settle_cost(meter.prompt_tokens + meter.completed)
            self.sizes.note(self.demand.model, self.demand.body_bytes, meter.prompt_tokens)
