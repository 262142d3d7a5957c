"""The place of one request in the queue, which it keeps for a second attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slotgate.admission import Lease, Ticket
from slotgate.gateway.forwarding.prepared_request import PreparedRequest
from slotgate.gateway.forwarding.queueing import granted, owned, submit
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.http.errors import GatewayError

__all__ = ["Place"]


class Place:
    def __init__(self, runtime: Runtime, request: PreparedRequest, clock: Callable[[], float]) -> None:
        self._runtime = runtime
        self._request = request
        self._clock = clock
        self._ticket: Ticket | None = None
        """The last ticket."""

    def __repr__(self) -> str:
        return f"<Place {self._ticket!r}>"

    @property
    def queued(self) -> bool:
        """True while the request waits."""
        return self._ticket is not None and self._ticket.queued

    @contextmanager
    def taken(
        self, wake: Callable[[], None], give_up: Callable[[GatewayError], None] | None
    ) -> Iterator[Ticket]:
        """Take the place. Wait in the block until `wake` is called, because the ticket is settled then.

        `give_up` is called if the body has to give way to others while the request waits. If it is None, the
        body does not. Raises `CapacityError` if there is no place.
        """
        runtime, request = self._runtime, self._request
        request.context.wait(self._clock())
        ticket = self._ticket = submit(runtime.queue, request.demand, wake, before=self._ticket)
        with owned(ticket, runtime.scheduler, request.held, give_up):
            yield ticket
        request.context.granted_at = self._clock()

    def leave(self) -> None:
        """Leave the queue."""
        if self._ticket is not None:
            self._runtime.scheduler.withdraw(self._ticket)

    def lease(self) -> Lease:
        """Return the lease, once the wait is over. Raises `CapacityError` if admission ended the wait."""
        assert self._ticket is not None
        return granted(self._ticket, self._runtime.scheduler, self._runtime.fleet.reasons_of)
