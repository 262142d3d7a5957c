"""The format of log lines; tracebacks show no variables."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from slotgate.gateway.telemetry.logs import configure_logging


class Output(io.StringIO):
    """A stand-in for stderr: a terminal or a pipe."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def untouched() -> Iterator[None]:
    """Restore the root logger and structlog after the test."""
    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**configured)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.usefixtures("untouched")
def test_a_traceback_shows_lines_and_no_variables(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(terminal)
    monkeypatch.setattr(sys, "stderr", output)
    configure_logging()
    secret = "CANARY" * 2
    try:
        raise LookupError(len(secret))
    except LookupError as error:
        structlog.stdlib.get_logger("slotgate").error("broken", exc_info=error)
    assert "raise LookupError(len(secret))" in output.getvalue()
    assert secret not in output.getvalue()


@pytest.mark.usefixtures("untouched")
def test_an_installed_formatter_that_shows_variables_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """structlog would use the tracebacks of rich, with all variables, if that package is installed."""
    monkeypatch.setattr(sys, "stderr", Output(True))
    configure_logging()
    [handler] = logging.getLogger().handlers
    assert isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter)
    renderer = handler.formatter.processors[-1]
    assert isinstance(renderer, structlog.dev.ConsoleRenderer)
    assert renderer._exception_formatter is structlog.dev.plain_traceback


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, untouched: None) -> Callable[[], list[dict[str, Any]]]:
    """The lines that were written to a pipe since logging was configured."""
    output = Output(terminal=False)
    monkeypatch.setattr(sys, "stderr", output)
    configure_logging()
    return lambda: [json.loads(line) for line in output.getvalue().splitlines()]


def test_lines_of_the_gateway_and_of_libraries_look_the_same(
    lines: Callable[[], list[dict[str, Any]]],
) -> None:
    structlog.stdlib.get_logger("slotgate.gateway.any").warning("ours")
    logging.getLogger("uvicorn.error").warning("theirs %d", 1)
    ours, theirs = lines()
    assert ours.keys() == theirs.keys() == {"event", "level", "timestamp"}
    assert (ours["event"], theirs["event"]) == ("ours", "theirs 1")
    assert ours["level"] == theirs["level"] == "warning"
    assert ours["timestamp"].endswith("Z")
    assert theirs["timestamp"].endswith("Z")


def test_a_traceback_of_a_library_is_text_too(lines: Callable[[], list[dict[str, Any]]]) -> None:
    try:
        raise LookupError("why")
    except LookupError:
        logging.getLogger("httpx").exception("broken")
    [line] = lines()
    assert line["exception"].endswith("LookupError: why")


def test_lines_below_the_level_are_not_written(lines: Callable[[], list[dict[str, Any]]]) -> None:
    fresh = structlog.stdlib.get_logger("slotgate.access")
    fresh.debug("health")
    fresh.log(logging.DEBUG, "health")
    logging.getLogger("httpx").info("GET")
    fresh.log(logging.INFO, "request")
    assert [line["event"] for line in lines()] == ["request"]


@pytest.mark.parametrize(
    ("value", "written"),
    [(2**70, 2**70), ("\ud800", "\ud800"), ({1, 2}, "{1, 2}"), (b"x", "b'x'")],
)
def test_any_value_can_be_logged(
    value: object, written: object, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    structlog.stdlib.get_logger("slotgate").info("odd", value=value)
    [line] = lines()
    assert line["value"] == written


@pytest.mark.parametrize("error", [BrokenPipeError, OSError(28, "full"), ValueError("closed file")])
def test_an_unwritable_log_loses_only_the_line(
    error: Exception, untouched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(Output):
        def write(self, _: str) -> int:
            raise error

    monkeypatch.setattr(sys, "stderr", Gone(terminal=False))
    configure_logging()
    structlog.stdlib.get_logger("slotgate").error("nobody reads this")
