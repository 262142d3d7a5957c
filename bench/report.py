"""Write the report of a run: a table on the terminal, all values as JSON, and two pictures."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from bench.chart import bars
from bench.columns import rows
from bench.cores import Cores
from bench.figures import Summary
from bench.peers import PEERS
from bench.plan import BenchPlan
from bench.samples import DIRECT, Samples
from bench.table import markdown, plain
from bench.versions import commit

__all__ = ["machine", "write_report"]


def machine() -> str:
    """Describe the machine."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{model}, Linux {platform.release()}, Python {platform.python_version()}"


def write_report(
    samples: Samples, plan: BenchPlan, cores: Cores, versions: Mapping[str, str], results: Path
) -> str:
    """Write the files, and return the text for the terminal."""
    titles, body = rows(samples)
    results.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
    document = {
        "date": stamp,
        "machine": machine(),
        "cores": str(cores),
        "commit": commit(),
        "versions": versions,
        "plan": asdict(plan),
        "missing": samples.failures,
        "values": samples.values,
    }
    (results / f"{stamp}.json").write_text(json.dumps(document, indent=1) + "\n")
    (results / f"{stamp}.md").write_text(markdown(titles, body) + "\n")
    for name, picture in _pictures(samples, plan).items():
        (results / f"{name}.svg").write_text(picture)
    about = {peer.name: f"{versions.get(peer.name) or 'version unknown'}; {peer.about}" for peer in PEERS}
    lines = [
        f"{machine()}; {cores}",
        f"{plan.streams} streams × {plan.pace} tokens/s, {plan.rounds} rounds in turn: median (least…most)",
        "+ is added to direct, whose own figures are absolute",
        "",
        plain(titles, body),
        "",
        *(f"{name}: {about[name]}" for name in samples.values if name in about),
        *(f"missing: {name}: {reason}" for name, reason in samples.failures.items()),
        f"written to {results}/{stamp}.json, .md and pictures",
    ]
    return "\n".join(lines)


def _pictures(samples: Samples, plan: BenchPlan) -> Mapping[str, str]:
    load = f"{plan.streams} streams of {plan.pace} tokens/s, one core; less is better"
    return {
        "cpu": _picture(
            samples,
            "CPU time per token",
            f"times nginx's in the same turn; {load}",
            lambda peer: samples.ratio_beside(peer, "cpu_us", "reference_cpu_us"),
        ),
        "latency": _picture(
            samples,
            "Latency added to a token, median",
            f"µs; {load}",
            lambda peer: samples.added(peer, "latency_p50_us"),
        ),
    }


def _picture(samples: Samples, title: str, unit: str, figure: Callable[[str], Summary | None]) -> str:
    peers = [peer for peer in samples.values if peer != DIRECT]
    known = [(peer, summary) for peer in peers if (summary := figure(peer)) is not None]
    return bars(title, unit, known, ours="slotgate")
