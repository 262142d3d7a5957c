"""A request that takes a slot, ready to be admitted and sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotgate.admission import Demand, HeldBody, Lease
from slotgate.gateway.api.chunks import Identity
from slotgate.gateway.api.dialects import Dialect, FrameOptions
from slotgate.gateway.api.endpoints import Endpoint
from slotgate.gateway.api.prompt_prefix import PromptPrefix
from slotgate.gateway.api.split import ArraySplit
from slotgate.gateway.forwarding.books import BookEntry
from slotgate.gateway.http.context import RequestContext
from slotgate.gateway.http.headers import Headers
from slotgate.gateway.http.request_body import Body, with_members

__all__ = ["PreparedRequest"]


@dataclass(slots=True)
class PreparedRequest:
    context: RequestContext
    endpoint: Endpoint
    body: Body
    """The body for the backend. It is empty once it is certain that it will not be sent again."""
    held: HeldBody
    """The place of the body in the budget of all bodies."""
    headers: Headers
    """The headers for the backend."""
    identity: Identity
    demand: Demand
    options: FrameOptions
    entry: BookEntry
    supersede_key: bytes = b""
    """A newer request with this key ends the older one. Empty if the request supersedes nothing."""
    prefix: PromptPrefix = field(default_factory=PromptPrefix)
    limit_name: str = ""
    """The name of the body's member that limits the answers."""
    queue_events: bool = False
    """True if the client wants to be told its place in the queue."""
    split: ArraySplit | None = None
    """The array that is asked for piece by piece. Body and demand are then what the pieces have in common,
    but `demand.cost` is that of the whole."""
    shares_context: bool = False
    """True if a backend of the model may share its context between slots."""
    names_slot: bool = False
    """True if the client chooses the backend's slot."""

    def body_for(self, lease: Lease) -> Body:
        """Return the body with the members that depend on the lease: the slot, and a limit for answers."""
        if self.endpoint.multipart:
            return self.body
        members = {}
        if len(lease.slots) == 1 and self.demand.numbered:
            members["id_slot"] = lease.slots[0]
        limits = [limit for limit in (lease.answer_limit, self.entry.answer_limit) if limit is not None]
        if limits and self.limit_name:
            members[self.limit_name] = min(limits)
        *before, last = self.body
        return (*before, *with_members(bytes(last), members))

    def fingerprint(self) -> int:
        """Return a number that two requests share if they ask the same of a backend.

        This reads the whole body, so it is asked for only after a failure.
        """
        return hash((self.endpoint.upstream_path, self.demand.model, *map(bytes, self.body)))

    def let_go_of_body(self) -> None:
        """Free the body, because a part of the answer has come, and no other attempt follows then."""
        self.body = ()
        self.held.release()

    def dialect(self) -> Dialect:
        return self.endpoint.dialect(self.identity, self.entry.usage, self.options)
