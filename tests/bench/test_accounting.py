"""CPU time and memory are read from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.accounting import Usage, family, memory_bytes, parse_ppid, parse_rss, parse_schedstat, usage
from bench.cores import Cores, choose


def test_schedstat_says_how_long_a_thread_ran_and_waited() -> None:
    assert parse_schedstat("722797 75253 3\n") == Usage(722797, 75253)


def test_the_parent_is_found_behind_any_name() -> None:
    assert parse_ppid("77 (a) b (c) S 12 77 0") == 12


def test_resident_memory_is_in_bytes_and_zero_for_the_dead() -> None:
    assert parse_rss("Name:\tx\nVmRSS:\t    6000 kB\nThreads:\t1\n") == 6_144_000
    assert parse_rss("Name:\tx\nState:\tZ (zombie)\n") == 0


def write_process(proc: Path, pid: int, parent: int, threads: list[int]) -> None:
    folder = proc / str(pid)
    for thread, spent in enumerate(threads):
        task = folder / "task" / str(pid + thread)
        task.mkdir(parents=True)
        (task / "schedstat").write_text(f"{spent} 1 0\n")
    (folder / "stat").write_text(f"{pid} (x) S {parent} 1 1\n")
    (folder / "status").write_text("VmRSS:\t10 kB\n")


def test_children_and_threads_count(tmp_path: Path) -> None:
    write_process(tmp_path, 10, 1, [1, 2])
    write_process(tmp_path, 20, 10, [4])
    write_process(tmp_path, 30, 20, [8])
    write_process(tmp_path, 40, 1, [16])
    (tmp_path / "meminfo").write_text("")
    pids = family(10, tmp_path)
    assert pids == [10, 20, 30]
    assert usage([*pids, 99], tmp_path) == Usage(15, 4)
    assert memory_bytes([*pids, 99], tmp_path) == 30 * 1024


def test_a_real_process_has_used_time_and_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        pids = family(os.getpid())
        assert child.pid in pids
        assert usage(pids).ran_ns > 0
        assert memory_bytes(pids) > 1 << 20


def test_gateway_and_load_share_a_single_core_and_the_text_says_so() -> None:
    assert choose({3}) == Cores(3, 3)
    assert "only one" in str(choose({3}))


def test_gateway_and_load_get_different_cores() -> None:
    cores = choose({900001, 900002})
    assert (cores.gateway, cores.load) == (900001, 900002)
    assert "core 900001" in str(cores)
