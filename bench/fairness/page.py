"""Write `docs/fairness.md`: the figures in short sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence

from bench.fairness.experiments import CROWD, SLOTS, Arrival, Batch, Queue, Shares
from bench.fairness.promise import Promise
from bench.table import markdown

__all__ = ["page"]


def page(
    shares: Sequence[Shares],
    arrivals: Sequence[Arrival],
    batch: Batch,
    queues: Sequence[Queue],
    promises: Sequence[Promise],
) -> str:
    return f"""# Many tenants on few slots

This page shows how the gateway's scheduler shares slots among tenants. `make fairness` writes it and its
picture. The scheduler of the gateway runs on virtual time, with random sizes from a fixed seed, so the
figures are the same on every machine. `make test` also runs it: the tests fail if a promise of this page is
broken or the page is out of date.

![Shares over time, newcomers behind a crowd, batch work](fairness.svg)

## Shares follow weights

{SLOTS} slots, all tenants always waiting, {shares[0].hours[-1]:g} hours.
Tenants share slot time: the seconds for which requests hold slots. The sizes of requests vary by half around
the average. The gateway guesses the slot time of a request from earlier ones, and counts what it really takes
while it runs. Here the guesses are wrong on purpose, by one factor per tenant.
Promise: each tenant gets the share of its weight, within 3 %.

{_share_table(shares)}

## A crowd does not delay other tenants

{CROWD:,} requests of one tenant wait. Then the first request of another tenant arrives, at
{len(arrivals[0].waits)} different moments. Waits are in service times of the longest request.
Promise: at most one. The last column shows the wait in a queue without fairness (first come, first served).

{_arrival_table(arrivals)}

## The next minutes

Crowds as gateways see them, each with a promise about the next minutes. Shares are parts of the slot time.

{_promise_table(promises)}

## Batch work advances

One batch tenant competes with four interactive tenants that never pause. All have weight 1, and batch work
counts an eighth. In {batch.minutes[-1]:g} minutes {batch.interactive[-1]} interactive requests and
{batch.batch[-1]} batch requests of equal length were served.
Promise: batch gets between a 33rd and a 17th of the slot time, since two to four interactive tenants wait.
While no interactive request waits, batch requests get all slots.

## A long queue costs no more than a short one

Four steps are measured together: a request arrives, one in the middle of the queue gives up, another arrives,
and one is served. The figures are instructions of the interpreter and calls into C on CPython 3.11, including
the work of the simulation itself.
Promise: with 10,000 waiting requests at most a quarter more than with 10.

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
    titles = ["tenants", "tenant", "weight", "tokens per request", "guess", "due", "received", "deviation"]
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
    return markdown(["slots", "mean wait", "longest wait", "wait without fairness"], rows)


def _promise_table(promises: Sequence[Promise]) -> str:
    rows = [
        [one.crowd, one.figure, f"{one.least:g} to {one.most:g}", f"{one.result:.3g}"] for one in promises
    ]
    return markdown(["crowd", "figure", "promise", "result"], rows)


def _queue_table(queues: Sequence[Queue]) -> str:
    rows = [
        [one.tenants, f"{one.waiting:,}", f"{one.instructions:,.0f}", f"{one.calls:,.0f}"] for one in queues
    ]
    return markdown(["waiting tenants", "requests", "instructions", "calls into C"], rows)
