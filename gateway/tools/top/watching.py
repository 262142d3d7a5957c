"""Runs the view: draws each snapshot until a key, a signal or a refusal ends it.

`q` ends the view, and the space bar pauses and continues it. If the output is not a terminal, one snapshot is
printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.live import Live

from slotgate.gateway.tools.top.feed import ConnectionLost, Feed, RefusedError, UnreachableError
from slotgate.gateway.tools.top.screen import ASCII, UNICODE, page
from slotgate.gateway.tools.top.snapshot import Snapshot
from slotgate.gateway.tools.top.terminal import keys_pressed

__all__ = ["watch"]

UNREACHABLE = 1
REFUSED = 2
_REDRAWN_S = 1.0
_QUIT = frozenset({"q", "Q", "\x03", "\x04", ""})
"""Keys that end the view: q, Ctrl-C and Ctrl-D. The empty key stands for a closed terminal."""


def watch(url: str, key: str, *, once: bool) -> int:
    """Run the view. Return the exit code: 0, 1 if the gateway does not answer, 2 if it refuses."""
    console = Console(highlight=False)
    try:
        asyncio.run(_watch(url, key, console, once=once or not console.is_terminal))
    except RefusedError as error:
        return _say(error, REFUSED)
    except UnreachableError as error:
        return _say(error, UNREACHABLE)
    return 0


async def _watch(url: str, key: str, console: Console, *, once: bool) -> None:
    async with Feed(url, key) as feed:
        if once:
            console.print(LiveView(feed.url, console, await feed.once()).drawn(whole=True))
        else:
            await _live(feed, console)


async def _live(feed: Feed, console: Console) -> None:
    snapshots = feed.live()
    first = await anext(snapshots)  # before the screen is taken, so that a refusal stays visible
    if isinstance(first, ConnectionLost):
        raise UnreachableError(first.reason)
    view = LiveView(feed.url, console, first)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, view.quit)

    async def follow() -> None:
        async for snapshot in snapshots:
            view.take(snapshot)

    following = loop.create_task(follow(), name="feed")
    following.add_done_callback(lambda _: view.quit())
    try:
        with (
            keys_pressed(sys.stdin, view.press),
            Live(view.drawn(), console=console, screen=True, auto_refresh=False) as live,
        ):
            while not view.over:
                live.update(view.drawn(), refresh=True)
                await view.changed()
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


@dataclass(slots=True)
class LiveView:
    """The snapshot to draw, and the state of the view."""

    title: str
    console: Console
    snapshot: Snapshot
    lost: str = ""
    held: bool = False
    over: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, news: Snapshot | ConnectionLost) -> None:
        self.lost = news.reason if isinstance(news, ConnectionLost) else ""
        if isinstance(news, Snapshot) and not self.held:
            self.snapshot = news
        self._news.set()

    def press(self, key: str) -> None:
        if key in _QUIT:
            self.quit()
        elif key == " ":
            self.held = not self.held
            self._news.set()

    def quit(self) -> None:
        self.over = True
        self._news.set()

    async def changed(self) -> None:
        """Return at the next change, or after a while, because the window may have another size."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REDRAWN_S):
                await self._news.wait()
        self._news.clear()

    def drawn(self, *, whole: bool = False) -> RenderableType:
        """Return the page for the current size of the window. With `whole` it is not cut to its height."""
        held = "paused: press the space bar to continue" if self.held else ""
        note = f"connection lost, trying again: {self.lost}" if self.lost else held
        unicode = (self.console.encoding or "").lower().startswith("utf")
        return page(
            self.snapshot,
            title=f"slotgate {self.title}",
            width=self.console.width,
            height=None if whole else self.console.height,
            note=note,
            signs=UNICODE if unicode else ASCII,
        )


def _say(error: Exception, code: int) -> int:
    print(error, file=sys.stderr)
    return code
