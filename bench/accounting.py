"""Read CPU time (in nanoseconds) and memory of a gateway and its children from the kernel.

The first number in `/proc/PID/task/TID/schedstat` is the time on a CPU. The second number is the time in
which the thread was ready while another thread had the core, so it shows how busy the machine was. Both are
summed over all threads of all processes. The time of a thread that has ended is lost, but no gateway here
starts a thread per request.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Usage", "family", "memory_bytes", "parse_ppid", "parse_rss", "parse_schedstat", "usage"]

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Usage:
    """Nanoseconds since the start, or between two points in time."""

    ran_ns: int = 0
    waited_ns: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.ran_ns + other.ran_ns, self.waited_ns + other.waited_ns)

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.ran_ns - other.ran_ns, self.waited_ns - other.waited_ns)


def parse_schedstat(text: str) -> Usage:
    """Parse a `schedstat` file."""
    ran, waited, _ = text.split()
    return Usage(int(ran), int(waited))


def parse_ppid(stat: str) -> int:
    """Parse the parent's id from a `stat` file. The program name in it may have spaces and brackets."""
    return int(stat.rpartition(")")[2].split()[1])


def parse_rss(status: str) -> int:
    """Parse the resident bytes from a `status` file. 0 for a process that has no memory any more."""
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def family(pid: int, proc: Path = PROC) -> list[int]:
    """Return the ids of the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            stat = _read(entry / "stat")
            if stat:
                children.setdefault(parse_ppid(stat), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def usage(pids: list[int], proc: Path = PROC) -> Usage:
    """Return the CPU time that these processes have used so far."""
    files = [file for pid in pids for file in (proc / str(pid) / "task").glob("*/schedstat")]
    return sum((parse_schedstat(text) for text in map(_read, files) if text), Usage())


def memory_bytes(pids: list[int], proc: Path = PROC) -> int:
    """Return the resident memory of these processes together. Shared pages count for each process."""
    return sum(parse_rss(_read(proc / str(pid) / "status")) for pid in pids)


def _read(file: Path) -> str:
    """Return the text of a `/proc` file, or "" if its process has ended."""
    try:
        return file.read_text()
    except OSError:
        return ""
