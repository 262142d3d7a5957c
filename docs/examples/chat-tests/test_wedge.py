"""One slot; a browser gets its answer, and neither reads on nor closes the stream. The next turn is served.

A server that holds a slot for as long as a response is open answers the second turn never: not slotgate. The
slot is given back when the model has finished, whatever the reader does.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from browser import browser, chromium, page_url, send, served_page

MEGABYTE = 1_000_000
PROGRAM = chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (Debian: apt-get install chromium)")


@pytest.fixture
def origin() -> Iterator[str]:
    with served_page() as origin:
        yield origin


@pytest.fixture
def slotgate_settings(origin: str) -> dict[str, Any]:
    """The page comes from somewhere else: the gateway has to know it. An unread answer may be long here."""
    return {"server": {"cors_origins": [origin]}, "streaming": {"stream_buffer_bytes": 64 * MEGABYTE}}


@pytest.fixture
def slotgate_script() -> dict[str, Any]:
    """One slot; behind what the page wants to see come 30 MB, more than browser and sockets hold for it."""
    word = " " + "x" * 1999
    long = "The answer." + word * (30 * MEGABYTE // len(word))
    return {
        "server": {"slots": 1, "n_ctx": 100_000},
        "reply": [{"contains": "first", "text": long}, {"contains": "next", "text": "The next answer."}],
    }


@pytest.fixture
def page(origin: str) -> Iterator[Any]:
    pytest.importorskip("playwright", reason="pip install playwright")
    assert PROGRAM is not None
    with browser(PROGRAM) as running:
        yield running.new_page()


def test_a_browser_that_never_ends_its_stream_does_not_keep_the_next_turn_waiting(
    page: Any, origin: str, slotgate: Any, scripted_llama: Any
) -> None:
    page.goto(page_url(origin, slotgate.url, slotgate.key, wedge="The answer."))
    send(page, "the first question")
    page.wait_for_selector("li[data-state=wedged]", timeout=10_000)

    send(page, "the next question")
    page.wait_for_selector("li:nth-child(2)[data-state=complete]", timeout=10_000)
    assert page.text_content("li:nth-child(2)") == "The next answer."
    assert scripted_llama.ever_deferred == 0
