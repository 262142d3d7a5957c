"""`slotgate top` against a real gateway: in a terminal of its own, and through a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.support.client import request_bytes
from tests.support.gateway import CHAT, ask, chat, running_gateway, settings_for
from tests.support.notation import H, T, answer, chunked
from tests.support.script import Script, Stall, Write
from tests.support.scripted import ScriptedUpstream, refusing_url
from tests.support.served import backend_table, served_gateway

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KEY = "sg-operator"
SERVER = {"port": 0, "operator_key_hashes": [hash_key(KEY)]}
TENANTS = [{"name": "team-a", "key_hashes": [hash_key("sg-a")]}]
HANGING: Script = [Write(H + chunked(T("a"))), Stall()]
_no_signs = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def environ(**variables: str) -> dict[str, str]:
    return {
        **os.environ,
        "SLOTGATE_OPERATOR_KEY": KEY,
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
        **variables,
    }


async def piped(*words: str, **variables: str) -> tuple[int | None, str, str]:
    """Return exit code, output and errors of `slotgate top` without a terminal."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "slotgate", "top", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environ(**variables),
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


class Terminal:
    """A process on a terminal of its own, with all its output."""

    def __init__(self, master: int, process: asyncio.subprocess.Process, size: tuple[int, int]) -> None:
        self.process = process
        self.written = ""
        self._master = master
        self._news = asyncio.Event()
        self.resize(size)
        asyncio.get_running_loop().add_reader(master, self._read)

    @property
    def text(self) -> str:
        return _no_signs.sub("", self.written)

    def resize(self, size: tuple[int, int]) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def forget(self) -> None:
        """Drop everything that was written until now."""
        self.written = ""

    async def shows(self, *texts: str, within: float = 10.0) -> None:
        async with asyncio.timeout(within):
            while not all(text in self.text for text in texts):
                self._news.clear()
                await self._news.wait()

    async def ended(self, within: float = 10.0) -> int:
        async with asyncio.timeout(within):
            return await self.process.wait()

    def settings(self) -> list[object]:
        return termios.tcgetattr(self._master)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)

    def _read(self) -> None:
        try:
            self.written += os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # the other side is gone
            asyncio.get_running_loop().remove_reader(self._master)
        self._news.set()


@asynccontextmanager
async def terminal(
    words: Sequence[str], size: tuple[int, int] = (110, 30), **variables: str
) -> AsyncIterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    command = [sys.executable, "-m", "slotgate", "top", *words]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=slave, stdout=slave, stderr=slave, env=environ(**variables), start_new_session=True
    )
    screen = Terminal(master, process, size)
    try:
        yield screen
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(slave)
        screen.close()


async def test_a_terminal_sees_slots_queue_and_requests_change_and_q_leaves_it_as_it_was() -> None:
    fu = ScriptedUpstream(scripts={CHAT: HANGING})
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url, server=SERVER, tenant=TENANTS)) as gateway:
        async with terminal(["--url", gateway.url]) as screen:
            before = screen.settings()
            await screen.shows("gpu0", "ready", "1 idle", "0 running  0 queued")
            async with await gateway.client() as running, await gateway.client() as queued:
                await running.post(CHAT, chat(), b"x-api-key: sg-a", b"x-request-id: the-first")
                await queued.send(request_bytes("POST", CHAT, b"x-api-key: sg-a", json=chat()))
                await screen.shows("1 running  1 queued", "team-a", "the-first", "1 wait", "1 lease")
            await screen.shows("client_gone")
            screen.type("q")
            assert await screen.ended() == 0
            assert screen.settings() == before
    assert screen.written.endswith("\x1b[?25h\x1b[?1049l")  # the cursor and the earlier page are back


async def test_the_space_bar_pauses_the_view() -> None:
    async with ScriptedUpstream() as fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        async with terminal(["--url", gateway.url]) as screen:
            await screen.shows("gpu0")
            screen.type(" ")
            await screen.shows("paused: press the space bar")
            await ask(gateway.url, b"x-request-id: unseen", stream=False)
            screen.forget()
            await screen.shows("paused: press the space bar", within=5)
            assert "unseen" not in screen.text
            screen.type(" ")
            await screen.shows("unseen")


async def test_a_gateway_that_restarts_is_seen_again(tmp_path: Path) -> None:
    table = f'[server]\noperator_key_hashes = ["{hash_key(KEY)}"]\n[usage]\nstore = "none"\n'
    async with ScriptedUpstream() as fu:
        async with served_gateway(tmp_path, table + backend_table(fu.url)) as served:
            url = served.url
            async with terminal(["--url", url]) as screen:
                await screen.shows("gpu0")
                await served.stop()
                await screen.shows("connection lost, trying again")
                port = url.rpartition(":")[2]
                again = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "slotgate", "serve", "--config", str(tmp_path / "slotgate.toml")),
                    env=environ(SLOTGATE_SERVER__PORT=port),
                    stderr=asyncio.subprocess.DEVNULL,
                    cwd=tmp_path,
                )
                try:
                    screen.forget()
                    async with asyncio.timeout(15):
                        while "trying again" in screen.text or "ready" not in screen.text:
                            screen.forget()
                            with contextlib.suppress(TimeoutError):
                                await screen.shows("ready", within=2)
                    screen.process.send_signal(signal.SIGTERM)
                    assert await screen.ended() == 0
                finally:
                    again.terminate()
                    await again.wait()


async def test_a_narrow_window_gets_a_narrow_page_also_after_a_resize() -> None:
    async with ScriptedUpstream() as fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        await ask(gateway.url, stream=False)
        async with terminal(["--url", gateway.url], (60, 20)) as screen:
            await screen.shows("gpu0", "outcome")
            assert "model" not in screen.text
            screen.resize((120, 20))
            await screen.shows("model")


async def test_without_a_terminal_one_picture_is_printed() -> None:
    async with ScriptedUpstream() as fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        await ask(gateway.url, b"x-request-id: seen-here", stream=False)
        code, out, err = await piped("--url", gateway.url, COLUMNS="100")
        assert (code, err) == (0, "")
        assert "gpu0" in out
        assert "seen-here" in out
        assert "\x1b" not in out
        ascii_code, ascii_out, _ = await piped("--url", gateway.url, "--once", PYTHONIOENCODING="ascii")
        assert (ascii_code, ascii_out.isascii(), "gpu0" in ascii_out) == (0, True, True)


async def test_the_key_may_come_from_a_file_and_is_never_an_argument(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    async with ScriptedUpstream() as fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        words = ("--url", gateway.url, "--key-file", str(path))
        assert (await piped(*words, SLOTGATE_OPERATOR_KEY=""))[0] == 0
        async with terminal(words, SLOTGATE_OPERATOR_KEY="") as screen:
            await screen.shows("gpu0")


async def test_the_key_is_asked_for_on_a_terminal_and_not_echoed(tmp_path: Path) -> None:
    async with ScriptedUpstream() as fu, running_gateway(settings_for(fu.url, server=SERVER)) as gateway:
        variables = {"SLOTGATE_OPERATOR_KEY": "", "XDG_STATE_HOME": str(tmp_path)}
        async with terminal(["--url", gateway.url], (110, 30), **variables) as screen:
            await screen.shows("Operator key:")
            screen.type(f"{KEY}\n")
            await screen.shows("gpu0")
            assert KEY not in screen.written
        code, _, err = await piped("--url", gateway.url, **variables)
        assert (code, "SLOTGATE_OPERATOR_KEY" in err) == (2, True)


@pytest.mark.parametrize(
    ("server", "key", "said"),
    [
        (SERVER, "sg-wrong", "does not know this operator key (401)"),
        ({"port": 0}, KEY, "has no /admin (404)"),
    ],
)
async def test_a_refusal_is_said_with_exit_code_2(server: dict[str, object], key: str, said: str) -> None:
    async with ScriptedUpstream() as fu, running_gateway(settings_for(fu.url, server=server)) as gateway:
        code, out, err = await piped("--url", gateway.url, SLOTGATE_OPERATOR_KEY=key)
        assert (code, out, said in err, err.count("\n")) == (2, "", True, 1), err
        async with terminal(["--url", gateway.url], SLOTGATE_OPERATOR_KEY=key) as screen:
            await screen.shows(said.partition(" (")[0])
            assert await screen.ended() == 2
            assert "\x1b[?1049h" not in screen.written


async def test_a_missing_gateway_is_exit_code_1_and_no_url_is_2() -> None:
    with refusing_url() as url:
        code, _, err = await piped("--url", url)
        assert (code, "cannot be reached" in err, "Traceback" in err) == (1, True, False)
    code, _, err = await piped("--url", "ftp://nowhere")
    assert (code, "is not the URL of a gateway" in err) == (2, True)


async def test_a_server_that_is_not_slotgate_is_reported_as_such() -> None:
    nothing: Script = [Write(answer(200, {}))]
    scripts = {
        "/admin/status": nothing,
        "/admin/requests": nothing,
        "/admin/events": [Write(answer(404, {}))],
    }
    async with ScriptedUpstream(scripts=scripts) as fu:
        code, _, err = await piped("--url", fu.url)
    assert (code, "does not answer as slotgate does" in err) == (2, True), err
