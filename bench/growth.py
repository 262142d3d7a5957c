"""`make bench-growth`: measure whether costs grow with the load. They should not.

* A token: with 1, 10, 100 and 1,000 streams that together produce a thousand tokens per second.
* A request: with an empty queue, and with 10,000 tickets of another tenant in it.
* A request: with one key in the configuration, and with 10,000.

It runs slotgate alone, on a core of its own, with the synthetic upstream. It prints medians and ranges.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from bench import load
from bench.contestant import Contestant, answers, running
from bench.cores import Cores, choose
from bench.open_files import allow_files
from bench.peers.peer import Launch, Peer, Site
from bench.ports import free_port
from bench.priority import favour, undisturbed
from bench.process import BenchProcess
from bench.stream import Client, Tally, Target, chat
from slotgate.gateway.auth.keys import hash_key, new_key

__all__ = ["main"]

HOME = Path(__file__).resolve().parent
ROUNDS = 5
STREAMS = (1, 10, 100, 1000)
TOKENS_A_SECOND = 1000
QUEUED = 10_000
KEYS = 10_000
REQUESTS = 400
WINDOW_S = 3.0
CALM, CROWD = new_key(), new_key()


def _configuration(site: Site, *, slots: int, keys: int) -> str:
    others = ", ".join(f'"{hash_key(f"sg-{number}")}"' for number in range(keys - 1))
    return f"""
[server]
max_connections = {QUEUED + 2000}

[admission]
max_queue = {QUEUED * 2}
max_queue_per_tenant = {QUEUED * 2}
queue_timeout_s = 600

[[tenant]]
name = "calm"
weight = 1000
key_hashes = ["{hash_key(CALM)}"]

[[tenant]]
name = "crowd"
key_hashes = ["{hash_key(CROWD)}"{", " + others if others else ""}]

[[backend]]
name = "upstream"
url = "{site.upstream}"
models = ["bench"]
slots = {slots}
"""


def _peer(name: str, *, slots: int = 1200, keys: int = 1) -> Peer:
    def launch(site: Site) -> Launch:
        config = site.write("slotgate.toml", _configuration(site, slots=slots, keys=keys))
        argv = [site.program, "-m", "slotgate", "serve", "--config", config]
        env = {
            "SLOTGATE_SERVER__PORT": str(site.port),
            "SLOTGATE_USAGE__STORE": f"sqlite:///{site.folder / 'slotgate.db'}",
        }
        return Launch(argv, env, headers=(("Authorization", f"Bearer {CALM}"),))

    return Peer(name=name, about="", install=lambda _: sys.executable, launch=launch)


async def _token_cost(gateway: Contestant, upstream: Target, streams: int) -> float:
    """Return the CPU microseconds per token."""
    with undisturbed([os.getpid(), *gateway.family()]):
        paced = await load.paced(
            gateway.target,
            upstream,
            gateway.usage,
            streams=streams,
            pace=TOKENS_A_SECOND // streams,
            settle_s=1.0,
            window_s=WINDOW_S,
        )
    return paced.usage.ran_ns / max(paced.tokens, 1) / 1e3


async def _request_cost(gateway: Contestant) -> float:
    """Return the CPU microseconds of a short request.

    Requests are sent one after another on a kept connection.
    """
    client = await Client.connect(gateway.target, Tally())
    before = gateway.usage()
    for _ in range(REQUESTS):
        if not client.usable:
            client.close()
            client = await Client.connect(gateway.target, Tally())
        await client.ask(chat(gateway.target, "pace=0 tokens=1")).over
    spent = gateway.usage() - before
    client.close()
    return spent.ran_ns / REQUESTS / 1e3


@asynccontextmanager
async def _crowd(gateway: Contestant) -> AsyncIterator[None]:
    """Keep 10,000 requests of another tenant waiting behind one that never ends.

    The waiting requests are short. Whenever the measured tenant has nothing in the queue, one of them is
    served.
    """
    target = Target(gateway.target.port, (("Authorization", f"Bearer {CROWD}"),))
    clients = []
    try:
        for number in range(QUEUED):
            clients.append(await Client.connect(target, Tally()))
            clients[-1].ask(chat(target, "pace=0 tokens=1" if number else "pace=1 tokens=0"))
        await asyncio.sleep(3)
        yield
    finally:
        for client in clients:
            client.close()


async def _streams(cores: Cores, work: Path, port: int) -> list[str]:
    seen: dict[int, list[float]] = {count: [] for count in STREAMS}
    async with running(_peer("streams"), sys.executable, port, core=cores.gateway, work=work) as gateway:
        for number in range(ROUNDS):
            for count in STREAMS[number % 4 :] + STREAMS[: number % 4]:
                seen[count].append(await _token_cost(gateway, Target(port), count))
    first = statistics.median(seen[STREAMS[0]])
    return [
        f"CPU of a token, {count:>5} streams: {_range(values)} µs  {statistics.median(values) / first:.2f}"
        for count, values in seen.items()
    ]


async def _queue(cores: Cores, work: Path, port: int) -> list[str]:
    """A backend with two slots: the crowd holds one for ever, and the measured tenant uses the other."""
    async with running(
        _peer("queue", slots=2), sys.executable, port, core=cores.gateway, work=work
    ) as gateway:
        without = [await _request_cost(gateway) for _ in range(ROUNDS)]
        hold = Target(gateway.target.port, gateway.target.headers)
        kept = [await Client.connect(hold, Tally()) for _ in range(2)]
        for client in kept:
            await client.ask(chat(hold, "pace=1 tokens=0")).first_token
        async with _crowd(gateway):
            # Both slots are taken while the crowd queues. Then its first request gets one and keeps it.
            waiting = await Client.connect(hold, Tally())
            asked = waiting.ask(chat(hold, "pace=0 tokens=1"))
            for client in kept:
                client.close()
            async with asyncio.timeout(30):
                await asked.over
            beside = [await _pair_cost(gateway) for _ in range(ROUNDS)]
            waiting.close()
    return _compared("CPU of a request, nothing waiting", without, f"{QUEUED:,} waiting", beside)


async def _pair_cost(gateway: Contestant) -> float:
    """Like `_request_cost`, while others wait: the next request queues before the last one has ended."""
    clients = [await Client.connect(gateway.target, Tally()) for _ in range(2)]
    before = gateway.usage()

    async def one_after_the_other(client: Client) -> None:
        for _ in range(REQUESTS // 2):
            if not client.usable:
                client.close()
                client = await Client.connect(gateway.target, Tally())
            await client.ask(chat(gateway.target, "pace=0 tokens=1")).over
        client.close()

    await asyncio.gather(*map(one_after_the_other, clients))
    return (gateway.usage() - before).ran_ns / REQUESTS / 1e3


async def _keys(cores: Cores, work: Path, port: int) -> list[str]:
    one, many = [], []
    async with (
        running(_peer("one-key"), sys.executable, port, core=cores.gateway, work=work) as few,
        running(
            _peer("many-keys", keys=KEYS), sys.executable, port, core=cores.gateway, work=work
        ) as crowded,
    ):
        for _ in range(ROUNDS):
            one.append(await _request_cost(few))
            many.append(await _request_cost(crowded))
    return _compared("CPU of a request, one key", one, f"{KEYS:,} keys", many)


def _compared(first: str, before: list[float], second: str, after: list[float]) -> list[str]:
    ratio = statistics.median(after) / statistics.median(before)
    return [f"{first}: {_range(before)} µs", f"{second}: {_range(after)} µs  {ratio:.2f}"]


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}…{max(values):.1f})"


async def _measure(cores: Cores) -> None:
    work = HOME / ".work"
    work.mkdir(exist_ok=True)
    port = free_port()
    upstream = BenchProcess(
        [sys.executable, "-m", "bench.upstream", str(port)], core=cores.load, log=work / "upstream.log"
    )
    try:
        await answers(Contestant("direct", Target(port), upstream))
        for part in (_streams, _queue, _keys):
            for line in await part(cores, work, port):
                print(line, flush=True)
    finally:
        upstream.stop()


def main() -> int:
    allow_files()
    cores = choose()
    print(cores, file=sys.stderr)
    os.sched_setaffinity(0, {cores.load})
    favour()
    uvloop.run(_measure(cores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
