"""Reads single key presses from a terminal, and restores the terminal's mode afterwards."""

from __future__ import annotations

import asyncio
import os
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["keys_pressed"]


@contextmanager
def keys_pressed(stream: TextIO, on_key: Callable[[str], None]) -> Iterator[None]:
    """Call `on_key` in the event loop for each key. Nothing happens if the stream is not a terminal."""
    if not stream.isatty():
        yield
        return
    loop = asyncio.get_running_loop()
    descriptor = stream.fileno()
    before = termios.tcgetattr(descriptor)

    def read() -> None:
        try:
            pressed = os.read(descriptor, 64)
        except OSError:  # the terminal is gone
            pressed = b""
        if not pressed:
            loop.remove_reader(descriptor)
            on_key("")
        for key in pressed.decode(errors="replace"):
            on_key(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
