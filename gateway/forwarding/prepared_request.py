"""One request that takes a slot, ready to be admitted and sent; and what its end leaves in the books."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotgate.admission import Demand, Lease
from slotgate.gateway.api.chunks import Identity
from slotgate.gateway.api.dialects import Dialect, FrameOptions
from slotgate.gateway.api.endpoints import Endpoint
from slotgate.gateway.api.prompt_prefix import PromptPrefix
from slotgate.gateway.api.token_usage import TokenUsage
from slotgate.gateway.backends.prompt_sizes import PromptSizes
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.headers import Headers
from slotgate.gateway.http.request_body import Body, with_members

__all__ = ["PreparedRequest"]


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    context: RequestContext
    endpoint: Endpoint
    body: Body
    headers: Headers
    """For the backend."""
    identity: Identity
    demand: Demand
    options: FrameOptions
    supersede_key: bytes = b""
    """A newer request with this key ends the older one; empty: the request supersedes nothing."""
    prefix: PromptPrefix = field(default_factory=PromptPrefix)
    sizes: PromptSizes = field(default_factory=PromptSizes)
    """Learns from this request how long its model's prompts are."""
    limit_name: str = ""
    """The member that limits its answers."""
    queue_events: bool = False
    """The client wants to be told its place in the queue."""

    def body_for(self, lease: Lease) -> Body:
        """The body, with what the lease says: which slot to use, and how long an answer may be that has no
        limit."""
        if self.endpoint.multipart:
            return self.body
        members = {}
        if len(lease.slots) == 1 and self.demand.numbered:
            members["id_slot"] = lease.slots[0]
        if lease.answer_limit is not None:
            members[self.limit_name] = lease.answer_limit
        [document] = self.body
        return with_members(bytes(document), members)

    def token_usage(self) -> TokenUsage:
        return TokenUsage(parts=self.options.parts)

    def dialect(self, token_usage: TokenUsage) -> Dialect:
        return self.endpoint.dialect(self.identity, token_usage, self.options)

    def book(self, token_usage: TokenUsage, lease: Lease | None) -> None:
        """The request is over: note its token counts, and charge its tenant what it really cost."""
        context = self.context
        context.prompt_tokens = token_usage.prompt_tokens
        context.cached_tokens = token_usage.cached_tokens
        context.completion_tokens = token_usage.completed
        context.partial = not token_usage.exact
        if token_usage.exact and lease is not None:
            lease.settle_cost(token_usage.prompt_tokens + token_usage.completed)
            self.sizes.note(self.demand.model, self.demand.body_bytes, token_usage.prompt_tokens)
