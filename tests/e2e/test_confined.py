"""The gateway needs no right but to listen and connect, and writes to its working folder alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.client import request_bytes
from tests.support.gateway import CHAT, chat
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE
from tests.support.scripted import ScriptedUpstream
from tests.support.served import backend_table, served_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

READ_ONLY = """
set -e
mount --bind "$1" "$1"
mount -o remount,bind,ro /
shift
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""
"""A shell's commands: nothing but the given folder can be written to, and no capability is left."""
OWN = {"slotgate.toml", "slotgate.log"}
"""Files of the test itself."""


def confined_to(folder: Path) -> list[str]:
    if not shutil.which("unshare") or not shutil.which("setpriv"):
        pytest.skip("unshare or setpriv (util-linux) is not installed")
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", READ_ONLY, "sh", str(folder)]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this user may not make a read-only root: {tried.stderr.strip()}")
    return command


def rights_of(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def files_in(folder: Path) -> set[str]:
    """Return the names of the files that the gateway wrote."""
    return {path.name for path in folder.rglob("*")} - OWN


async def test_a_read_only_root_and_no_capabilities_are_enough(tmp_path: Path) -> None:
    confined_by = confined_to(tmp_path)
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    check = [*confined_by, sys.executable, "-c", f"open({str(outside)!r}, 'w')"]
    written = subprocess.run(check, capture_output=True, check=False)  # noqa: ASYNC221
    assert b"Read-only file system" in written.stderr
    async with ScriptedUpstream(llama=LlamaLike(1, tokens=3)) as fu:
        async with served_gateway(tmp_path, backend_table(fu.url), confined_by=confined_by) as served:
            status = rights_of(served.process.pid)
            assert "CapEff:\t0000000000000000\nCapBnd:\t0000000000000000" in status
            assert "NoNewPrivs:\t1" in status
            async with await served.client() as client:
                await client.send(request_bytes("POST", CHAT, json=chat(model="m")))
                await client.head()
                assert [frame.data async for frame in client.frames()][-1] == DONE
            assert await served.stop() == 0
            assert served.complaints() == []
    assert {name.partition("-")[0] for name in files_in(tmp_path)} == {"slotgate.db"}
