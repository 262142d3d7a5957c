"""`docs/fairness.md`: what the figures say, in short sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence

from bench.fairness.experiments import CROWD, SLOTS, Arrival, Batch, Queue, Shares
from bench.table import markdown

__all__ = ["page"]


def page(shares: Sequence[Shares], arrivals: Sequence[Arrival], batch: Batch, queues: Sequence[Queue]) -> str:
    return f"""# Many tenants on few slots

What the gateway's scheduler does with a crowd. `make fairness` writes this page and its picture: the
scheduler that serves requests runs on virtual time, with random sizes from a fixed seed, so the figures are
the same on every machine. `make test` runs it too, holds the figures to what is promised here, and fails when
this page is out of date.

![Shares over time, newcomers behind a crowd, batch work](fairness.svg)

## Shares follow weights

{SLOTS} slots, all tenants always waiting, {shares[0].hours[-1]:g} hours.
Sizes vary by half around the average. What a request will cost is estimated when it comes and corrected when
it has ended; here the estimates are wrong on purpose, by one factor for all requests of a tenant.
Promised: within 3 % of the share that the weights give.

{_share_table(shares)}

## A crowd delays nobody else

{CROWD:,} requests of one tenant wait. Another tenant's first request comes, at
{len(arrivals[0].waits)} different hooks. Waits are in service times of the longest request.
Promised: at most one.

{_arrival_table(arrivals)}

## Batch gets on

One batch tenant beside interactive ones that never pause: in {batch.minutes[-1]:g} minutes
{batch.interactive[-1]} interactive requests were served and {batch.batch[-1]} of batch.
Promised, and so it was: one request in {batch.widest_gap} is of batch.
With no interactive work waiting, batch has all slots.

## A long queue costs no more than a short one

One request comes, one gives up in the middle of the queue, one comes, one is served: instructions of the
interpreter and calls into C for these together, on CPython 3.11, with all that the simulation itself does.
Promised: with 10,000 waiting no more than a quarter above what it is with 10.

{_queue_table(queues)}
"""


def _share_table(shares: Sequence[Shares]) -> str:
    rows = [
        [
            str(len(one.tenants)),
            tenant.name,
            f"{tenant.weight:g}",
            f"{tenant.tokens:,}",
            f"× {tenant.misjudged:g}",
            f"{one.due(tenant):.2%}",
            f"{parts[-1]:.2%}",
            f"{parts[-1] / one.due(tenant) - 1:+z.2%}",
        ]
        for one in shares
        for tenant, parts in zip(one.tenants, one.parts, strict=True)
    ]
    titles = ["tenants", "tenant", "weight", "tokens a request", "estimate", "due", "had", "off by"]
    return markdown(titles, rows)


def _arrival_table(arrivals: Sequence[Arrival]) -> str:
    rows = [
        [
            str(arrival.slots),
            f"{sum(arrival.waits) / len(arrival.waits):.2f}",
            f"{max(arrival.waits):.2f}",
            f"{arrival.in_line:.0f}",
        ]
        for arrival in arrivals
    ]
    return markdown(["slots", "mean wait", "longest wait", "in the order of arrival"], rows)


def _queue_table(queues: Sequence[Queue]) -> str:
    rows = [
        [one.tenants, f"{one.waiting:,}", f"{one.instructions:,.0f}", f"{one.calls:,.0f}"] for one in queues
    ]
    return markdown(["who waits", "waiting", "instructions", "calls into C"], rows)
