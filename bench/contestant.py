"""A running gateway in front of one upstream."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.accounting import Usage
from bench.install import Unavailable
from bench.peers import Peer, Site
from bench.ports import free_port
from bench.process import BenchProcess
from bench.stream import Client, Tally, Target, chat

__all__ = ["Contestant", "answers", "installed", "running"]

_START_S = 90.0
_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Contestant:
    name: str
    target: Target
    child: BenchProcess | None = None
    """The process of the gateway (of the upstream for `direct`); None if the benchmark has not started it."""
    fraction: int = 1
    """The gateway gets one in `fraction` of the streams."""

    def family(self) -> list[int]:
        return self.child.family() if self.child is not None else []

    def usage(self) -> Usage:
        return self.child.usage() if self.child is not None else Usage()

    def memory_bytes(self) -> int:
        return self.child.memory_bytes() if self.child is not None else 0


def installed(peer: Peer, work: Path) -> str:
    """Return the program of a gateway and install it if it is missing. Raises `Unavailable`."""
    work.mkdir(parents=True, exist_ok=True)
    return peer.install(work)


@asynccontextmanager
async def running(
    peer: Peer, program: str, upstream_port: int, *, core: int, work: Path
) -> AsyncIterator[Contestant]:
    """Start a gateway and wait until it has streamed a chat; stop it at the end of the block.

    Raises `Unavailable` if the gateway cannot be installed or does not answer.
    """
    folder = work / "run" / peer.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    site = Site(program, folder, free_port(), upstream_port)
    launch = peer.launch(site)
    child = BenchProcess(launch.argv, core=core, log=folder / "output.log", env=launch.env)
    try:
        contestant = Contestant(peer.name, Target(site.port, launch.headers), child, peer.fraction)
        await answers(contestant)
        yield contestant
    finally:
        child.stop()


async def answers(contestant: Contestant) -> None:
    """Wait until the gateway has answered a chat."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _START_S
    while True:
        try:
            async with asyncio.timeout(_ANSWER_S):
                client = await Client.connect(contestant.target, Tally())
                await client.ask(chat(contestant.target, "pace=0 tokens=2", max_tokens=2)).over
                client.close()
                return
        except (OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
        child = contestant.child
        if loop.time() > deadline or (child is not None and child.ended):
            said = f"; its log ends: {child.last_words}" if child is not None else ""
            raise Unavailable(f"it did not start ({reason}){said}")
        await asyncio.sleep(0.1)
