"""The exec wrapper, as a process of its own: the real kernel, no event loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from slotgate.gateway.processes import exec_wrapper as child

WRAPPER = (sys.executable, "-I", "-S", str(child.__file__))

POSSIBLE = sum(1 << (number - 1) for number in signal.valid_signals())
"""All signals as the kernel writes them, without the two that glibc keeps for itself and does not restore."""


def wrapped(*command: str, parent: int | None = None) -> subprocess.CompletedProcess[str]:
    arguments = (*WRAPPER, str(parent or os.getpid()), *command)
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=20)


def test_the_pid_that_was_started_is_the_pid_of_the_program() -> None:
    command = (*WRAPPER, str(os.getpid()), sys.executable, "-c", "import os; print(os.getpid())")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate(timeout=20)

    assert int(output) == process.pid


def test_the_program_leads_a_session_of_its_own() -> None:
    result = wrapped(sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid() == os.getpgid(0))")

    assert result.stdout == "True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_the_program_dies_of_sigkill_with_its_parent() -> None:
    ask = "import ctypes; c = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(c)); print(c.value)"

    result = wrapped(sys.executable, "-c", ask)

    assert int(result.stdout) == signal.SIGKILL


def test_no_signal_is_ignored_or_blocked_in_the_program() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        result = wrapped("grep", "-E", "^Sig(Ign|Blk):", "/proc/self/status")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGHUP, before)

    blocked, ignored = (int(mask, 16) for mask in result.stdout.split()[1::2])
    assert (blocked, ignored & POSSIBLE) == (0, 0)


def test_a_parent_that_is_already_gone_means_no_program() -> None:
    result = wrapped("echo", "started", parent=1 if os.getpid() != 1 else 2)

    assert (result.returncode, result.stdout) == (child.ORPHANED, "")


@pytest.mark.parametrize("program", ["no-such-program", "/"])
def test_a_program_that_cannot_be_started_is_named(program: str) -> None:
    result = wrapped(program)

    assert result.returncode == child.CANNOT_START
    assert result.stderr.startswith(f"cannot start {program}: ")
    assert result.stderr.count("\n") == 1


def test_the_environment_is_the_one_that_was_given() -> None:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "LLAMA_API_KEY": "secret"}
    command = (*WRAPPER, str(os.getpid()), "env")

    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=20)

    assert dict(line.split("=", 1) for line in result.stdout.splitlines()) == environment
