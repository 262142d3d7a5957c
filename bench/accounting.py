"""What the kernel says that a gateway cost: CPU time to the nanosecond, and memory, children included.

CPU time is the first number of `/proc/PID/task/TID/schedstat`, summed over all threads of all processes. A
thread that ended in between takes its time with it; none of the gateways here starts threads for a request.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["cpu_ns", "family", "memory_bytes", "parse_ppid", "parse_rss", "parse_schedstat"]

PROC = Path("/proc")


def parse_schedstat(text: str) -> int:
    """Nanoseconds on a CPU, from a `schedstat` file."""
    return int(text.split(maxsplit=1)[0])


def parse_ppid(stat: str) -> int:
    """The parent, from a `stat` file: the name in it may hold blanks and brackets."""
    return int(stat.rpartition(")")[2].split()[1])


def parse_rss(status: str) -> int:
    """Resident bytes, from a `status` file; 0 for what has no memory any more."""
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def family(pid: int, proc: Path = PROC) -> list[int]:
    """The process and all its descendants."""
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


def cpu_ns(pids: list[int], proc: Path = PROC) -> int:
    """CPU time that these processes have used until now."""
    files = [file for pid in pids for file in (proc / str(pid) / "task").glob("*/schedstat")]
    return sum(parse_schedstat(text) for text in map(_read, files) if text)


def memory_bytes(pids: list[int], proc: Path = PROC) -> int:
    """Resident memory of these processes together; what they share counts for each."""
    return sum(parse_rss(_read(proc / str(pid) / "status")) for pid in pids)


def _read(file: Path) -> str:
    """The text of a file of a process that may have ended."""
    try:
        return file.read_text()
    except OSError:
        return ""
