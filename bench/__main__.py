"""`python -m bench`: install missing gateways, measure, and write the report."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path

import uvloop

from bench.contest import Contest
from bench.contestant import installed
from bench.cores import Cores, choose
from bench.install import Unavailable
from bench.llama import llama_server
from bench.open_files import allow_files
from bench.peers import PEERS, QUICK, Peer
from bench.plan import FULL, BenchPlan
from bench.plan import QUICK as QUICK_PLAN
from bench.priority import favour
from bench.report import write_report
from bench.samples import Samples
from bench.versions import version_of

__all__ = ["main"]

HOME = Path(__file__).resolve().parent


def main() -> int:
    options = _options()
    plan = QUICK_PLAN if options.quick else FULL
    if options.rounds:
        plan = dataclasses.replace(plan, rounds=options.rounds)
    wanted = options.peers or (QUICK if options.quick else [peer.name for peer in PEERS])
    allow_files()
    cores = choose()
    print(cores, file=sys.stderr)
    samples = Samples()
    programs = _install([peer for peer in PEERS if peer.name in wanted], samples)
    versions = {peer.name: version_of(peer, program) for peer, program in programs.items()}
    os.sched_setaffinity(0, {cores.load})
    favour()
    uvloop.run(_measure(plan, programs, samples, cores))
    print(write_report(samples, plan, cores, versions, HOME / "results"))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="slotgate between other gateways")
    parser.add_argument("--quick", action="store_true", help="four gateways and short rounds: under a minute")
    parser.add_argument("--rounds", type=int, help="rounds, instead of the plan's")
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    return parser.parse_args()


def _install(peers: list[Peer], samples: Samples) -> dict[Peer, str]:
    programs = {}
    for peer in peers:
        print(f"installing {peer.name}", file=sys.stderr)
        try:
            programs[peer] = installed(peer, HOME / ".work")
        except Unavailable as error:
            samples.fail(peer.name, str(error))
    return programs


async def _measure(plan: BenchPlan, programs: dict[Peer, str], samples: Samples, cores: Cores) -> None:
    work = HOME / ".work"
    contest = Contest(plan, programs, samples, cores=cores, work=work)
    await contest.run()
    if plan.real_rounds:
        try:
            with llama_server(work, streams=plan.real_streams, tokens=plan.real_tokens) as port:
                await contest.run_real(port)
        except Unavailable as error:
            samples.fail("llama-server", str(error))


if __name__ == "__main__":
    sys.exit(main())
