"""Logging: JSON on a pipe, readable on a terminal. Never per frame.

Our own lines do not go through the standard library, which takes a tenth of a millisecond for each: there is
one a request. What libraries log does, and looks the same.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TextIO

import structlog

__all__ = ["configure_logging"]


def configure_logging(level: int = logging.INFO) -> None:
    """For the whole process; foreign loggers (uvicorn, httpx) speak through it from WARNING on."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    terminal = sys.stderr.isatty()
    plain = structlog.dev.plain_traceback  # others show local variables, and keys are among them
    console = structlog.dev.ConsoleRenderer(exception_formatter=plain)
    renderer: structlog.typing.Processor = console
    if not terminal:
        renderer = structlog.processors.JSONRenderer()
        shared.append(structlog.processors.format_exc_info)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    lines = _Lines(sys.stderr)
    structlog.configure(
        processors=[*shared, renderer],
        logger_factory=lambda *_: lines,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )


class _Lines:
    """Where our own lines go. One that cannot be written is lost, as in the standard library: the log may be
    full or gone, and whoever logs has a request to finish."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def msg(self, line: str) -> None:
        with suppress(OSError, ValueError):
            self._output.write(line + "\n")
            self._output.flush()

    debug = info = warning = error = critical = msg
