"""The output and the end of a process tell if another start will help, and what clients are told."""

from __future__ import annotations

import signal

import pytest

from slotgate.gateway.processes.child import Exit
from slotgate.gateway.processes.failure import failure_before_ready

PATH = "/home/somebody/models/tiny.gguf"


@pytest.mark.parametrize(
    ("code", "line", "reason"),
    [
        (
            1,
            f"gguf_init_from_file: failed to open GGUF file '{PATH}' (No such file or directory)",
            "a file does not",
        ),
        (1, "error loading model architecture: unknown model architecture: 'mamba9'", "architecture mamba9"),
        (1, f"common_init_from_params: failed to load model '{PATH}'", "its model cannot be loaded"),
        (1, "error: unknown argument: --no-such", "does not know an option"),
        (1, "ggml_vulkan: Device memory allocation failed: out of memory", "not enough memory"),
        (127, f"cannot start {PATH}: No such file or directory", "program of its command does not exist"),
        (126, f"cannot start {PATH}: Permission denied", "may not be executed"),
        (3, "nothing that is known", "exit status 3"),
        (-signal.SIGILL, "", "another processor"),
    ],
)
def test_exit_before_ready_is_lasting_and_its_reason_names_no_path(code: int, line: str, reason: str) -> None:
    failure = failure_before_ready(str(Exit(code)), Exit(code), ("first", line, "exiting"))
    assert failure.lasting
    assert reason in failure.reason
    assert PATH not in failure.reason
    assert line in failure.output


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (Exit(-signal.SIGKILL), "load_tensors: loading"),
        (Exit(-signal.SIGSEGV), ""),
        (Exit(1), "main: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080"),
        (None, "it was ended because it was not ready in time"),
    ],
)
def test_other_ends_may_do_better_next_time(end: Exit | None, line: str) -> None:
    assert not failure_before_ready("reason", end, (line,)).lasting
