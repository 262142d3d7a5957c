"""One browser and one real llama-server for all tests of the pages; a gateway and a context for each."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.support.browsing import Look, chromium, running_browser
from tests.support.llama import RealLlama
from tests.support.operated import Operated

Looks = Callable[..., Look]
UNREACHABLE = "net::ERR_CONNECTION_REFUSED"


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with running_browser(program) as browser:
        yield browser


@pytest.fixture(scope="package")
def chat_llama(small_model: Path) -> Iterator[RealLlama]:
    """Slow enough to be watched: about 100 tokens a second."""
    with RealLlama(small_model, slots=2, context=8192) as llama:
        yield llama


@pytest.fixture
def operated(tmp_path: Path, chat_llama: RealLlama) -> Iterator[Operated]:
    with Operated(tmp_path, chat_llama.url) as gateway:
        yield gateway


@pytest.fixture
def look(browser: Browser, operated: Operated) -> Iterator[Looks]:
    """Opens a context of its own: `look(**DARK)`. In the end no console may have complained."""
    opened: list[Look] = []

    def open_one(**options: Any) -> Look:  # noqa: ANN401
        opened.append(Look(browser, operated, **options))
        return opened[-1]

    yield open_one
    for one in opened:
        one.context.close()
    assert [text for one in opened for text in one.complaints] == []
