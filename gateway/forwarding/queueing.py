"""The border between HTTP and admission. Only this module turns a refusal into an error with a status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from slotgate.admission import Demand, HeldBody, Lease, Outcome, Refusal, Refused, Scheduler, Ticket
from slotgate.gateway.forwarding.queue import AdmissionQueue
from slotgate.gateway.http.errors import CapacityError, GatewayError

__all__ = ["granted", "owned", "refusal", "submit"]

_STATUS = {
    Refusal.QUEUE_FULL: 429,
    Refusal.TENANT_CONCURRENCY: 429,
    Refusal.RATE_LIMITED: 429,
    Refusal.QUOTA_EXCEEDED: 429,
    Refusal.QUEUE_TIMEOUT: 503,
    Refusal.NO_BACKEND: 503,
    Refusal.DRAINING: 503,
}
_SENTENCE = {
    Refusal.QUEUE_FULL: "too many requests are waiting",
    Refusal.TENANT_CONCURRENCY: "this key has reached its limit of concurrent requests",
    Refusal.QUEUE_TIMEOUT: "no slot became free in time",
    Refusal.NO_BACKEND: "no backend can serve this request now",
    Refusal.DRAINING: "the gateway is shutting down",
}


def submit(
    queue: AdmissionQueue, demand: Demand, wake: Callable[[], None], *, before: Ticket | None = None
) -> Ticket:
    """Take a place in the queue, in a second attempt that of the first ticket. Raises `CapacityError`."""
    try:
        return queue.submit(demand, wake, before=before)
    except Refused as refused:
        raise refusal(refused) from refused


def refusal(refused: Refused) -> CapacityError:
    """Return the error for a refusal. Clients should not retry on a used-up quota, which lasts all day."""
    kind = refused.refusal
    headers = [(b"x-should-retry", b"false")] if kind is Refusal.QUOTA_EXCEEDED else []
    return CapacityError(
        _STATUS[kind], kind.value, refused.detail, retry_after_s=refused.retry_after_s, headers=headers
    )


@contextmanager
def owned(
    ticket: Ticket, scheduler: Scheduler, body: HeldBody, cancel: Callable[[GatewayError], None] | None
) -> Iterator[None]:
    """Wait in the block for the ticket to be settled.

    If an exception leaves the block, leave the queue, and give back a grant that came at that moment.
    `cancel` is called if the body has to give way to those of others. If it is None, the body does not.
    """
    try:
        with body.given_up_by(lambda refused: cancel(refusal(refused))) if cancel else nullcontext():
            yield
    except BaseException:
        scheduler.withdraw(ticket)
        if ticket.lease is not None:
            ticket.lease.release(Outcome.UNUSED)
        raise


def granted(ticket: Ticket, scheduler: Scheduler, reasons: Callable[[str], str]) -> Lease:
    """Return the lease of a settled ticket. Raises `CapacityError` if admission ended the wait.

    `reasons` says of a model why its backends take no requests.
    """
    if ticket.lease is not None:
        return ticket.lease
    why = ticket.refusal or Refusal.QUEUE_TIMEOUT
    model = ticket.demand.model
    none_admits = why is Refusal.QUEUE_TIMEOUT and not scheduler.admits(model)
    sentence = "no backend that serves the model takes requests now" if none_admits else _SENTENCE[why]
    if none_admits or why is Refusal.NO_BACKEND:
        because = reasons(model)
        sentence = f"{sentence} ({because})" if because else sentence
    retry_after_s = scheduler.estimate_wait_s(model, ticket.demand.tenant, ticket.demand.priority)
    raise CapacityError(_STATUS[why], why.value, sentence, retry_after_s=retry_after_s)
