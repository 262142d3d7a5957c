"""What the log shows of an exception: where it came from, and no variable."""

import io
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog

from gateway.logs import configure_logging


class Output(io.StringIO):
    """Stands in for stderr: a terminal, or a pipe."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def untouched() -> Iterator[None]:
    """The root logger and structlog as they were."""
    root, ours = logging.getLogger(), logging.getLogger("slotgate")
    handlers, levels, configured = root.handlers[:], (root.level, ours.level), structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    for name in ("slotgate", "gateway", "middleware", "admission"):
        logging.getLogger(name).setLevel(levels[1])
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
def test_no_formatter_of_a_terminal_that_shows_variables_is_used_where_one_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """structlog would take the traceback of rich, with all variables, where that package is there."""
    monkeypatch.setattr(sys, "stderr", Output(True))
    configure_logging()
    [handler] = logging.getLogger().handlers
    assert isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter)
    renderer = handler.formatter.processors[-1]
    assert isinstance(renderer, structlog.dev.ConsoleRenderer)
    assert renderer._exception_formatter is structlog.dev.plain_traceback
