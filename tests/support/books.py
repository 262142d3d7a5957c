"""Sends one request to a gateway on virtual time, ends it in some way, and reads all books afterwards.

The books are: the usage record, the history, the tenant's day, its requests per minute, its slot time, and
the metrics. They must agree. Every request belongs to a tenant of its own, so these books have its figures
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from slotgate.admission import Demand, Outcome
from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.settings import Settings
from tests.support.booked_request import (
    ESTIMATED,
    GONE,
    LOADING,
    MORTAL,
    TAKEN,
    Case,
    Ending,
    Prompt,
    Row,
)
from tests.support.client import RawClient
from tests.support.endpoints import MODEL, Way
from tests.support.gateway import settings_for
from tests.support.llama_like import LlamaLike
from tests.support.logged import logged
from tests.support.notation import answer, error_body
from tests.support.script import Fin, Script, Stall, Write
from tests.support.virtual_gateway import VirtualUpstream, virtual_gateway

__all__ = ["rows_of"]

_TIMEOUTS = {"first_byte_s": 3, "idle_s": 3, "total_s": 5.1}
REQUESTS = 6
"""Requests per minute of each tenant: one comes back in ten seconds, and no ending takes that long."""
_LOADS: Script = [
    Write(answer(503, error_body(503, "Loading model", "unavailable_error"), b"Connection: close")),
    Fin(),
]


async def rows_of(
    way: Way, endings: Mapping[str, Ending], *, stream: bool, wide: bool = False
) -> dict[str, Row]:
    """Send a request for every ending, one after another. `GONE` must be the first, `drain` the last."""
    now_said: list[Script] = []
    """The scripts for the next requests. The last one stays."""

    def upstream(slots: int, said: Script | None = None) -> VirtualUpstream:
        script = (
            (lambda _: now_said.pop(0) if now_said[1:] else now_said[0]) if said is None else (lambda _: said)
        )
        return VirtualUpstream(scripts={way.upstream: script}, llama=LlamaLike(slots, model=MODEL))

    upstreams = (
        upstream(4),
        upstream(1, [Stall()]),
        upstream(8, _LOADS),
        upstream(4),
        upstream(4),
        upstream(4),
    )
    main, taken, loading, spare, mortal, gone = upstreams
    rows: dict[str, Row] = {}
    with logged() as log:
        async with main, taken, loading, spare, mortal, gone:
            settings = _settings(upstreams, map(_tenant, endings))
            async with virtual_gateway(settings) as gateway:
                blocker = gateway.parts.runtime.scheduler.submit(Demand("blocker", TAKEN), lambda: None)
                gone.stop_listening()
                gone.abort_all()
                for name, ending in endings.items():
                    now_said[:] = [ending.script(way)]
                    now_said += [ending.others(way)] if ending.others is not None else []
                    case = Case(gateway, way, _tenant(name), stream, wide, await gateway.client(), mortal)
                    rows[name] = await _row(case, ending)
                assert blocker.lease is not None
                blocker.lease.release(Outcome.FINISHED)
    assert not log.errors, log.errors
    return rows


def _tenant(ending: str) -> str:
    return ending.replace(" ", "-")


def _settings(upstreams: tuple[VirtualUpstream, ...], tenants: Iterable[str]) -> Settings:
    limits = {"tokens_per_day": 100_000, "requests_per_minute": REQUESTS}
    models = {
        "main": "m",
        "taken": TAKEN,
        "loading": LOADING,
        "spare": LOADING,
        "mortal": MORTAL,
        "gone": GONE,
    }
    return settings_for(
        server={"port": 0, "operator_key_hashes": [hash_key("sg-operator")], "shutdown_grace_s": 0.01},
        backend=[
            {
                "name": name,
                "url": fu.url,
                "models": [model],
                "health_interval_s": 1 if model == MORTAL else 30,
            }
            for (name, model), fu in zip(models.items(), upstreams, strict=True)
        ],
        tenant=[{"name": name, "key_hashes": [hash_key(f"sg-{name}")], **limits} for name in tenants],
        timeouts=_TIMEOUTS,
    )


async def _row(case: Case, ending: Ending) -> Row:
    """Send the request, end it, and return what the books say."""
    gateway, history = case.gateway, case.gateway.parts.history
    async with case.client:
        await case.client.send(case.request(ending.model, case.tenant))
        reading = asyncio.create_task(_read(case.client))
        await asyncio.sleep(ending.at)
        before = await case.facts()
        await ending.act(case)
        await gateway.until(lambda: any(facts["id"] == case.tenant for facts in history.newest(0.0)))
        await gateway.until_idle()
        await reading
    [facts] = [facts for facts in history.newest(0.0) if facts["id"] == case.tenant]
    seconds = gateway.parts.runtime.scheduler.slot_seconds.get(case.tenant, 0.0)
    return Row(
        facts["status"],
        _prompt(facts),
        facts["cached_tokens"],
        facts["completion_tokens"],
        bool(facts["partial"]),
        records=_records(case, facts),
        requests=_requests(case, facts),
        seconds=int(2 * seconds + 0.01) / 2,
        live=(_prompt(before), before["completion_tokens"]) if before else None,
    )


def _prompt(facts: dict[str, Any]) -> Prompt:
    tokens: int = facts["prompt_tokens"]
    return ESTIMATED if facts["estimated"] and tokens else tokens


async def _read(client: RawClient) -> None:
    try:
        await client.head(within=60)
        await client.body(within=60)
    except ConnectionError:
        assert not client.clean_end


def _records(case: Case, facts: dict[str, Any]) -> int:
    """Return the number of usage records. Each must say what the history says, and so must the metrics."""
    records = [record for record in case.gateway.records if record.request_id == case.tenant]
    tokens = facts["prompt_tokens"], facts["cached_tokens"], facts["completion_tokens"]
    for record in records:
        assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == tokens
        assert (record.partial, record.estimated) == (bool(facts["partial"]), bool(facts["estimated"]))
        assert (record.status, record.outcome) == (facts["status"], facts["outcome"])
    value = case.gateway.parts.metrics.registry.get_sample_value
    labels = {"model": facts["model"], "tenant": case.tenant}
    kinds = "prompt", "cached", "completion"
    assert tuple(value("slotgate_tokens_total", {**labels, "kind": kind}) for kind in kinds) == tokens
    return len(records)


def _requests(case: Case, facts: dict[str, Any]) -> int:
    """Return what was taken of the requests per minute.

    The tokens of the day must be those of the request.
    """
    limiter = case.gateway.parts.runtime.limiter
    assert limiter.used_today(case.tenant) == facts["prompt_tokens"] + facts["completion_tokens"]
    assert limiter.reserved_today(case.tenant) == 0
    with_slot, without = limiter.requests_of(case.tenant), limiter.slot_free_requests_of(case.tenant)
    assert with_slot is not None
    assert without is not None
    counted, other = (with_slot, without) if case.way.endpoint.takes_slot else (without, with_slot)
    assert other.remaining == REQUESTS, "the two limits are apart"
    return REQUESTS - counted.remaining
