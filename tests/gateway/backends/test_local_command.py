"""The command of a llama-server on this machine, found by its port in a copy of /proc."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from slotgate.gateway.backends.local_command import command_of_listener, local_port

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   0: 0100007F:{port:04X} 00000000:0000 {state} 0:0 00:0 00000000  1000 0 {inode} 1\n"


def machine(proc: Path, *, comm: str = "llama-server", state: str = "0A") -> Path:
    (proc / "net").mkdir()
    (proc / "net" / "tcp").write_text(HEAD + ROW.format(port=8081, state=state, inode=77))
    process = proc / "4711"
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text(comm + "\n")
    (process / "cmdline").write_bytes(b"llama-server\0-m\0a.gguf\0-c\08192\0")
    (process / "environ").write_bytes(b"SECRET=x\0LLAMA_ARG_N_PARALLEL=2\0")
    (process / "fd" / "5").symlink_to("socket:[77]")
    (proc / "12").mkdir()
    return proc


def test_the_listener_is_found_with_its_options_and_nothing_else(tmp_path: Path) -> None:
    found = uvloop.run(command_of_listener(8081, machine(tmp_path)))
    assert found is not None
    assert found.words == ("llama-server", "-m", "a.gguf", "-c", "8192")
    assert found.environ == {"LLAMA_ARG_N_PARALLEL": "2"}


@pytest.mark.parametrize(
    ("port", "comm", "state"),
    [(8082, "llama-server", "0A"), (8081, "nginx", "0A"), (8081, "llama-server", "01")],
)
def test_other_ports_programs_and_connections_are_not_taken_for_it(
    tmp_path: Path, port: int, comm: str, state: str
) -> None:
    assert uvloop.run(command_of_listener(port, machine(tmp_path, comm=comm, state=state))) is None


def test_machine_without_proc_shows_nothing(tmp_path: Path) -> None:
    assert uvloop.run(command_of_listener(8081, tmp_path)) is None


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://127.0.0.1:8081", 8081),
        ("http://localhost:8081/prefix", 8081),
        ("http://[::1]:9", 9),
        ("http://127.0.0.1", 80),
        ("https://127.0.0.1:8443", None),
        ("http://10.0.0.2:8081", None),
        ("http://gpu.example:8081", None),
    ],
)
def test_only_loopback_is_this_machine(url: str, port: int | None) -> None:
    assert local_port(url) == port


def test_a_process_whose_name_is_not_utf_8_hides_no_other(tmp_path: Path) -> None:
    """Linux cuts names after 15 bytes, also inside a character."""
    proc = machine(tmp_path)
    other = proc / "7"
    other.mkdir()
    (other / "comm").write_bytes(b"gr\xc3\n")
    assert uvloop.run(command_of_listener(8081, proc)) is not None
