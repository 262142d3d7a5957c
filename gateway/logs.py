"""Logging: structlog over the standard library, JSON on a pipe, readable on a terminal. Never per frame."""

from __future__ import annotations

import logging
import sys

import structlog

__all__ = ["configure_logging"]


def configure_logging(level: int = logging.INFO) -> None:
    """For the whole process; foreign loggers (uvicorn, httpx) speak through it from WARNING on."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    terminal = sys.stderr.isatty()
    plain = structlog.dev.plain_traceback  # others show local variables, and keys are among them
    console = structlog.dev.ConsoleRenderer(exception_formatter=plain)
    renderer = console if terminal else structlog.processors.JSONRenderer()
    tracebacks = [] if terminal else [structlog.processors.format_exc_info]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tracebacks, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for ours in ("slotgate", "gateway", "middleware", "admission"):
        logging.getLogger(ours).setLevel(level)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
