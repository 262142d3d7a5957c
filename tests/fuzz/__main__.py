"""Fuzz the targets one after the other: `python -m tests.fuzz [--seconds N] [target...]`.

With Atheris the search is guided by coverage, and the corpus becomes the fewest inputs that reach all lines.
Without Atheris hypothesis changes the inputs of the corpus at random. An input that fails is written to the
corpus, so that the tests fail until the fault is mended.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.corpus import CORPUS, inputs, keep, replace
from tests.fuzz.http import round_of
from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS

HTTP = "http"
"""The target that is a running gateway."""
MAX_BYTES = 4096
"""Longer inputs are not tried, which keeps the corpus small."""


def main() -> int:
    options = _options()
    names = options.targets or [*sorted(TARGETS), HTTP]
    guided = importlib.util.find_spec("atheris") is not None
    print("guided by coverage (Atheris)" if guided else "Atheris is not installed: hypothesis alone")
    seconds = max(1, options.seconds // len(names))
    search = _guided if guided else _random
    failed = [name for name in names if not (_on_sockets(seconds) if name == HTTP else search(name, seconds))]
    print("failed: " + ", ".join(failed) if failed else "no target failed")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=int, default=60, help="time for all targets together")
    parser.add_argument("targets", nargs="*", choices=[[], *sorted(TARGETS), HTTP], metavar="target")
    return parser.parse_args()


def _guided(name: str, seconds: int) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        found, merged = Path(scratch, "found"), Path(scratch, "merged")
        found.mkdir()
        merged.mkdir()
        limits = [f"-max_total_time={seconds}", f"-max_len={MAX_BYTES}", "-timeout=10", "-rss_limit_mb=2048"]
        prefix = f"-artifact_prefix={scratch}/crash-"
        ran = _atheris(name, found, CORPUS / name, *limits, prefix, "-print_final_stats=1")
        print(f"{name}: {_figures(ran.stderr)}, exit {ran.returncode}")
        for crash in Path(scratch).glob("crash-*"):
            print(f"  fails: {keep(name, crash.read_bytes(), failed=True)}")
            print(ran.stdout[-3000:], ran.stderr[-2000:], sep="\n")
        if (
            ran.returncode == 0
            and _atheris(name, merged, CORPUS / name, found, "-merge=1", "-use_counters=0").returncode == 0
        ):
            replace(name, [path.read_bytes() for path in merged.iterdir()])
            print(f"  corpus: {len(inputs(name))} inputs")
        return ran.returncode == 0


def _atheris(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.guided", name, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")


def _figures(log: str) -> str:
    stats = dict(line.removeprefix("stat::").split(":", 1) for line in log.splitlines() if "stat::" in line)
    covered = [line for line in log.splitlines() if " cov: " in line]
    executed = stats.get("number_of_executed_units", "?").strip()
    reached = covered[-1].partition(" cov: ")[2].split(" corp")[0] if covered else "?"
    return f"{executed} inputs, coverage {reached}"


def _random(name: str, seconds: int) -> bool:
    end, tried = time.monotonic() + seconds, 0

    @settings(
        max_examples=500, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(mutated(inputs(name)))
    def holds(data: bytes) -> None:
        nonlocal tried
        tried += 1
        try:
            TARGETS[name](data)
        except Exception:
            print(f"  fails: {keep(name, data, failed=True)}")
            raise

    try:
        while time.monotonic() < end:
            holds()
    except Exception as error:
        print(f"{name}: {error!r}")
        return False
    print(f"{name}: {tried} inputs")
    return True


def _on_sockets(seconds: int) -> bool:
    """Send changed requests to a running gateway, a new one for each thousand."""
    end, seed, statuses = time.monotonic() + seconds, random.randrange(2**32), Counter[int]()
    while time.monotonic() < end:
        seed += 1
        try:
            storm = asyncio.run(round_of(inputs(HTTP), 1000, seed))
        except AssertionError as error:
            print(f"{HTTP}: seed {seed}: {error!r}")
            return False
        statuses += storm.statuses
        for data, said in storm.failures.items():
            print(f"  fails: {keep(HTTP, data, failed=True)}: {said}")
        if storm.failures:
            return False
    print(f"{HTTP}: answers {dict(statuses.most_common())}")
    return True


if __name__ == "__main__":
    sys.exit(main())
