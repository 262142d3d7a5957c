"""Sends one request to a gateway on virtual time, ends it in some way, and reads all books afterwards.

The books are: the usage record, the history, the tenant's day, its requests per minute, its slot time, and
the metrics. They must agree. Every request belongs to a tenant of its own, so these books have its figures
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slotgate.admission import Demand, Outcome
from slotgate.gateway.auth.keys import hash_key
from slotgate.gateway.settings import Settings
from tests.support.client import RawClient
from tests.support.endpoints import MODEL, Way
from tests.support.gateway import settings_for
from tests.support.llama_like import LlamaLike
from tests.support.logged import logged
from tests.support.notation import answer, error_body
from tests.support.script import Fin, Script, Stall, Write
from tests.support.virtual_gateway import VirtualGateway, VirtualUpstream, virtual_gateway

__all__ = [
    "ESTIMATED",
    "LOADING",
    "MORTAL",
    "TAKEN",
    "Case",
    "Ending",
    "Row",
    "cancel",
    "die",
    "drain",
    "leave",
    "rows_of",
    "stay",
    "supersede",
]

Prompt = int | Literal["~"]
"""The tokens of a prompt; `~` if they are estimated."""
ESTIMATED: Literal["~"] = "~"
LOADING = "lame"
"""A model with two backends. The one with most slots says that it loads its model."""
MORTAL = "mortal"
"""The model of the backend that `die` kills."""
TAKEN = "taken"
"""A model whose only slot is taken."""
_TIMEOUTS = {"first_byte_s": 3, "idle_s": 3, "total_s": 5.1}
REQUESTS = 6
"""Requests per minute of each tenant: one comes back in ten seconds, and no ending takes that long."""
_OPERATOR = b"authorization: Bearer sg-operator"
_LOADS: Script = [
    Write(answer(503, error_body(503, "Loading model", "unavailable_error"), b"Connection: close")),
    Fin(),
]


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one request in all books."""

    status: int
    prompt: Prompt
    cached: int
    completion: int
    partial: bool
    records: int
    requests: int
    """What it took of the requests per minute."""
    seconds: float
    """The slot time that its tenant is charged for, rounded down to half slot-seconds.

    An abandoned slot is seen to be idle in less than that.
    """
    live: tuple[Prompt, int] | None
    """Prompt and completion tokens in the live view before the end; None if it is not there."""


@dataclass(slots=True)
class Case:
    """A request under way."""

    gateway: VirtualGateway
    way: Way
    tenant: str
    """Also the id of the request."""
    stream: bool
    wide: bool
    """The request has an array of three elements."""
    client: RawClient
    mortal: VirtualUpstream

    def request(self, model: str, request_id: str = "later") -> bytes:
        members: dict[str, Any] = {"stream": True} if self.stream else {}
        members |= (self.way.sample.wide or {}) if self.wide else {}
        headers = (
            b"authorization: Bearer sg-" + self.tenant.encode(),
            b"x-request-id: " + request_id.encode(),
            b"x-slotgate-supersede: key",
        )
        return self.way.request(*headers, model=model, **members)

    async def facts(self) -> dict[str, Any] | None:
        """Return what `/admin/requests` says of the request."""
        async with await self.gateway.client() as operator:
            await operator.request("GET", "/admin/requests", _OPERATOR)
            listed = (await operator.json())["requests"]
        return next((facts for facts in listed if facts["id"] == self.tenant), None)


Action = Callable[[Case], Awaitable[None]]


# -- what the client and the operator do


async def stay(_: Case) -> None:
    """Read the answer to its end."""


async def leave(case: Case) -> None:
    case.client.close()


async def cancel(case: Case) -> None:
    async with await case.gateway.client() as operator:
        await operator.request("POST", f"/admin/requests/{case.tenant}/cancel", _OPERATOR)
        assert operator.status == 200


async def supersede(case: Case) -> None:
    """Send a later request with the same key. It leaves before it gets a slot, so it costs nothing."""
    async with await case.gateway.client() as later:
        await later.send(case.request(TAKEN))
        await asyncio.sleep(0.05)


async def die(case: Case) -> None:
    """Kill the backend, and start it again after a moment."""
    case.mortal.stop_listening()
    case.mortal.abort_all()
    await asyncio.sleep(0.2)
    await case.mortal.listen()


async def drain(case: Case) -> None:
    """Shut the gateway down, with a grace period that is too short for the request."""
    parts = case.gateway.parts
    await case.gateway.server.drain(refuse=parts.drain, cancel=parts.runtime.cancel_running)


@dataclass(frozen=True, slots=True)
class Ending:
    """The way in which a request ends, and the figures that it leaves."""

    script: Callable[[Way], Script]
    row: Row
    act: Action = stay
    at: float = 1.5
    """Seconds after the request at which the live view is read, and then `act` is called."""
    model: str = "m"
    others: Callable[[Way], Script] | None = None
    """The script for all elements of an array but the first one; by default that of the first."""


# -- the gateway and its books


async def rows_of(
    way: Way, endings: Mapping[str, Ending], *, stream: bool, wide: bool = False
) -> dict[str, Row]:
    """Send a request for every ending, one after another. `drain` must be the last."""
    now_said: list[Script] = []
    """The scripts for the next requests. The last one stays."""

    def upstream(slots: int, said: Script | None = None) -> VirtualUpstream:
        script = (
            (lambda _: now_said.pop(0) if now_said[1:] else now_said[0]) if said is None else (lambda _: said)
        )
        return VirtualUpstream(scripts={way.upstream: script}, llama=LlamaLike(slots, model=MODEL))

    upstreams = upstream(4), upstream(1, [Stall()]), upstream(8, _LOADS), upstream(4), upstream(4)
    main, taken, loading, spare, mortal = upstreams
    rows: dict[str, Row] = {}
    with logged() as log:
        async with main, taken, loading, spare, mortal:
            settings = _settings(upstreams, map(_tenant, endings))
            async with virtual_gateway(settings) as gateway:
                blocker = gateway.parts.runtime.scheduler.submit(Demand("blocker", TAKEN), lambda: None)
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


def _settings(upstreams: tuple[VirtualUpstream, ...], tenants: Any) -> Settings:  # noqa: ANN401
    limits = {"tokens_per_day": 100_000, "requests_per_minute": REQUESTS}
    models = {"main": "m", "taken": TAKEN, "loading": LOADING, "spare": LOADING, "mortal": MORTAL}
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
