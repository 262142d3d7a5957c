"""Run a benchmark: start all gateways, then give each one a turn in every round.

The order of the turns rotates from round to round, so that no gateway always follows the same one. The noise
of a machine changes within seconds. So in the turn of a gateway that gets all streams, the CPU time of a
token is measured three times: for nginx, for the gateway and for nginx again. The gateway is compared with
the mean of the two. Memory is measured on a fresh process.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from bench import load
from bench.contestant import Contestant, answers, running
from bench.cores import Cores
from bench.figures import percentile
from bench.install import Unavailable
from bench.peers import Peer
from bench.plan import BenchPlan
from bench.ports import free_port
from bench.priority import undisturbed
from bench.process import BenchProcess
from bench.samples import DIRECT, REFERENCE, Samples
from bench.stream import Target

__all__ = ["Contest"]

Installed = Mapping[Peer, str]
"""Gateways that take part -> their programs."""


class Contest:
    def __init__(
        self, plan: BenchPlan, peers: Installed, samples: Samples, *, cores: Cores, work: Path
    ) -> None:
        self._plan = plan
        self._peers = peers
        self._samples = samples
        self._cores = cores
        self._work = work

    async def run(self) -> None:
        """Take all measurements with the synthetic upstream."""
        port = free_port()
        log = self._work / "upstream.log"
        child = BenchProcess(
            [sys.executable, "-m", "bench.upstream", str(port)], core=self._cores.load, log=log
        )
        try:
            direct = Contestant(DIRECT, Target(port), child)
            await answers(direct)
            async with AsyncExitStack() as started:
                gateways = await self._start(started, port)
                reference = next((one for one in gateways if one.name == REFERENCE), None)
                for number in range(self._plan.rounds):
                    for contestant in _rotated([direct, *gateways], number):
                        self._say(f"round {number + 1} of {self._plan.rounds}: {contestant.name}")
                        # With fewer streams a token costs every gateway twice as much, so a ratio would
                        # mislead.
                        whole = contestant is not direct and contestant.fraction == 1
                        beside = reference if whole else None
                        await self._turn(contestant, direct, beside)
            if self._plan.slow_streams:
                await self._memory(port)
        finally:
            child.stop()

    async def run_real(self, port: int) -> None:
        """Measure every gateway with the real llama-server on `port`."""
        async with AsyncExitStack() as started:
            contestants = [Contestant(DIRECT, Target(port)), *await self._start(started, port)]
            for number in range(self._plan.real_rounds):
                for contestant in _rotated(contestants, number):
                    self._say(
                        f"llama-server, round {number + 1} of {self._plan.real_rounds}: {contestant.name}"
                    )
                    await self._real_turn(contestant)

    # -- turns

    async def _turn(self, contestant: Contestant, direct: Contestant, reference: Contestant | None) -> None:
        plan, samples, name, upstream = self._plan, self._samples, contestant.name, direct.target
        streams = max(1, plan.streams // contestant.fraction)
        contestants = [direct, contestant] if reference is None else [direct, contestant, reference]
        try:
            with undisturbed([os.getpid(), *(pid for one in contestants for pid in one.family())]):
                before = await self._cost(reference, upstream, streams)
                paced = await self._paced(contestant, upstream, streams)
                after = await self._cost(reference, upstream, streams)
                if reference is not None:
                    samples.add(name, "reference_cpu_us", (before + after) / 2)
                samples.add(name, "cpu_us", paced.cpu_us)
                samples.add(name, "wait_us", paced.wait_us)
                samples.add(name, "latency_p50_us", percentile(paced.latencies_ns, 50) / 1e3)
                samples.add(name, "latency_p99_us", percentile(paced.latencies_ns, 99) / 1e3)
                samples.add(name, "delivered", paced.tokens / (streams * plan.pace * plan.window_s))
                took = await load.first_tokens(
                    contestant.target, requests=plan.first_tokens, limit_s=plan.first_tokens_limit_s
                )
                samples.add(name, "ttft_p50_ms", percentile(took, 50) / 1e6)
                samples.add(name, "ttft_p95_ms", percentile(took, 95) / 1e6)
            rate = await load.saturated(
                contestant.target,
                upstream,
                streams=plan.saturated_streams,
                settle_s=plan.settle_s,
                window_s=plan.saturated_s,
            )
            samples.add(name, "saturated", rate)
        except (OSError, TimeoutError) as error:
            samples.fail(name, f"part of a turn failed: {str(error) or type(error).__name__}")

    async def _cost(self, reference: Contestant | None, upstream: Target, streams: int) -> float:
        """CPU time per token of the reference gateway, or NaN if it is missing or fails."""
        if reference is None:
            return math.nan
        try:
            return (await self._paced(reference, upstream, streams)).cpu_us
        except (OSError, TimeoutError) as error:
            self._samples.fail(reference.name, f"beside another: {str(error) or type(error).__name__}")
            return math.nan

    async def _paced(self, contestant: Contestant, upstream: Target, streams: int) -> load.PacedRun:
        plan = self._plan
        return await load.paced(
            contestant.target,
            upstream,
            contestant.usage,
            streams=streams,
            pace=plan.pace,
            settle_s=plan.settle_s,
            window_s=plan.window_s,
        )

    async def _memory(self, port: int) -> None:
        counts = self._plan.slow_streams
        for peer, program in self._peers.items():
            self._say(f"memory: {peer.name}")
            try:
                async with running(
                    peer, program, port, core=self._cores.gateway, work=self._work
                ) as contestant:
                    target = contestant.target
                    idle, *seen = await load.slow(
                        target, Target(port), contestant.memory_bytes, counts=counts
                    )
            except (OSError, TimeoutError, Unavailable) as error:
                self._samples.fail(
                    peer.name, f"memory was not measured: {str(error) or type(error).__name__}"
                )
                continue
            self._samples.add(peer.name, "idle_mib", idle / 2**20)
            for count, used in zip(counts, seen, strict=True):
                self._samples.add(peer.name, f"stream_kib_{count}", (used - idle) / count / 1024)

    async def _real_turn(self, contestant: Contestant) -> None:
        plan = self._plan
        try:
            took = await load.first_tokens(
                contestant.target,
                requests=plan.first_tokens,
                limit_s=plan.first_tokens_limit_s,
                text="Tell a long story.",
                pause_s=0.01,
            )
            self._samples.add(contestant.name, "real_ttft_p50_ms", percentile(took, 50) / 1e6)
            rate = await load.fixed(contestant.target, streams=plan.real_streams, tokens=plan.real_tokens)
        except (OSError, TimeoutError) as error:
            self._samples.fail(
                contestant.name, f"llama-server through it: {str(error) or type(error).__name__}"
            )
        else:
            self._samples.add(contestant.name, "real", rate)

    # -- mechanism

    async def _start(self, started: AsyncExitStack, port: int) -> list[Contestant]:
        contestants = []
        for peer, program in self._peers.items():
            self._say(f"starting {peer.name}")
            try:
                course = running(peer, program, port, core=self._cores.gateway, work=self._work)
                contestants.append(await started.enter_async_context(course))
            except Unavailable as error:
                self._samples.fail(peer.name, str(error))
        return contestants

    def _say(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr)


def _rotated(contestants: list[Contestant], by: int) -> list[Contestant]:
    by %= len(contestants)
    return contestants[by:] + contestants[:by]
