"""The memory that the bodies of all requests may take together: `max_queue_bytes`.

    ARRIVING --its last byte--> WAITING --the backend begins to answer--> let go

A body is held while it arrives, while its request waits, and while it may have to be sent again. Bytes count
as they come. When there are too many, the tenant that holds most loses its newest body that can be given up:
one that arrives or waits. So every tenant is sure of an equal part, and what it leaves free is there for the
others. A body that is the only one always fits. This module is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slotgate.admission.errors import Refusal, Refused

__all__ = ["BodyBudget", "HeldBody"]

_DETAIL = "the requests in the gateway already hold as much memory as they may"


class HeldBody:
    """The body of a request. `release` may be called more than once."""

    __slots__ = ("_budget", "_give_up", "size", "tenant")

    def __init__(self, budget: BodyBudget, tenant: str) -> None:
        self.tenant = tenant
        self.size = 0
        """Bytes that are held."""
        self._budget: BodyBudget | None = budget
        self._give_up: Callable[[Refused], None] | None = None

    def __repr__(self) -> str:
        return f"<HeldBody {self.tenant} {self.size} bytes{'' if self._give_up else ', needed'}>"

    @property
    def can_be_given_up(self) -> bool:
        return self._give_up is not None

    @contextmanager
    def given_up_by(self, give_up: Callable[[Refused], None]) -> Iterator[None]:
        """Let the body be given up in the block: `give_up` ends its request. It must not raise."""
        self._give_up = give_up
        try:
            yield
        finally:
            self._give_up = None

    def grow(self, size: int) -> None:
        """Hold so many bytes more. Raises `Refused` if there is no room for them and this body has to go."""
        if self._budget is not None:
            self._budget.grow(self, size)

    def give_up(self) -> None:
        """End the request, which gives its bytes back."""
        end, self._give_up = self._give_up, None
        self.release()
        if end is not None:
            end(Refused(Refusal.QUEUE_FULL, _DETAIL))

    def release(self) -> None:
        """Hold nothing any more."""
        budget, self._budget = self._budget, None
        if budget is not None:
            budget.remove(self)


class BodyBudget:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._bodies: dict[HeldBody, None] = {}
        """All bodies that are held, in the order in which their requests came."""
        self._by_tenant: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<BodyBudget {self.held}/{self.max_bytes} bytes, {len(self._bodies)} bodies>"

    @property
    def held(self) -> int:
        """Bytes of all bodies."""
        return self._by_tenant.total()

    def held_by(self, tenant: str) -> int:
        return self._by_tenant[tenant]

    def open(self, tenant: str, announced: int) -> HeldBody:
        """Begin to hold a body. Raises `Refused` if one of the announced size would be the first to go."""
        full = self.held + announced > self.max_bytes
        if full and self.held and self._by_tenant[tenant] + announced >= max(self._by_tenant.values()):
            raise Refused(Refusal.QUEUE_FULL, _DETAIL)
        body = HeldBody(self, tenant)
        self._bodies[body] = None
        return body

    def grow(self, body: HeldBody, size: int) -> None:
        """See `HeldBody.grow`."""
        body.size += size
        self._by_tenant[body.tenant] += size
        while self.held > self.max_bytes and self.held > body.size:
            victim = self._victim(body)
            victim.give_up()
            if victim is body:
                raise Refused(Refusal.QUEUE_FULL, _DETAIL)

    def remove(self, body: HeldBody) -> None:
        """See `HeldBody.release`."""
        del self._bodies[body]
        left = self._by_tenant[body.tenant] - body.size
        body.size = 0
        if left:
            self._by_tenant[body.tenant] = left
        else:
            del self._by_tenant[body.tenant]

    def _victim(self, grown: HeldBody) -> HeldBody:
        """Return the newest body of the tenant that holds most, or else the one that has grown."""
        most = max(self._by_tenant.values())
        if self._by_tenant[grown.tenant] == most:
            tenant = grown.tenant
        else:
            tenant = next(name for name, held in self._by_tenant.items() if held == most)
        for body in reversed(self._bodies):
            if body.tenant == tenant and (body is grown or (body.size and body.can_be_given_up)):
                return body
        return grown
