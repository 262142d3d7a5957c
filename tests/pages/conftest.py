"""All tests of the pages share a browser, a real llama-server and a gateway.

Each test has a browser context of its own. Tests that stop a gateway start one of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.support.browsing import Look, chromium, running_browser
from tests.support.llama import RealLlama
from tests.support.operated import Operated

Looks = Callable[..., Look]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with running_browser(program) as browser:
        yield browser


@pytest.fixture(scope="package")
def chat_llama(small_model: Path) -> Iterator[RealLlama]:
    """A llama-server that is slow enough to watch: about 100 tokens a second."""
    with RealLlama(small_model, slots=2, context=8192) as llama:
        yield llama


@pytest.fixture(scope="package")
def operated(tmp_path_factory: pytest.TempPathFactory, chat_llama: RealLlama) -> Iterator[Operated]:
    with Operated(tmp_path_factory.mktemp("gateway"), chat_llama.url) as gateway:
        yield gateway


@pytest.fixture
def restarted(tmp_path: Path, chat_llama: RealLlama) -> Iterator[Operated]:
    """A gateway that the test stops and starts."""
    with Operated(tmp_path, chat_llama.url) as gateway:
        yield gateway


@pytest.fixture
def look(browser: Browser, operated: Operated) -> Iterator[Looks]:
    """Open pages in a new context, as in `look(**DARK)`. Fails if a console reports errors."""
    opened: list[Look] = []

    def open_one(gateway: Operated = operated, **options: Any) -> Look:  # noqa: ANN401
        opened.append(Look(browser, gateway, **options))
        return opened[-1]

    yield open_one
    for one in opened:
        one.context.close()
    assert [text for one in opened for text in one.complaints] == []
