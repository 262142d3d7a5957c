"""A browser gets its answer from a server with one slot, and then neither reads on nor closes the stream.

A server that keeps the slot while the response is open would never answer the next turn. slotgate releases
the slot when the model has finished, whatever the browser does.
"""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import browser, chromium, page_url, send, served_page

TIMEOUT_MS = 30_000
UNREAD_BYTES = 60_000_000 + sum(
    int(Path(f"/proc/sys/net/ipv4/tcp_{side}mem").read_text().split()[2]) for side in "rw"
)
"""More bytes than the socket buffers and the browser hold."""
PROGRAM = chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (Debian: apt-get install chromium)")


@pytest.fixture
def origin() -> Iterator[str]:
    with served_page() as origin:
        yield origin


@pytest.fixture
def slotgate_settings(origin: str) -> dict[str, Any]:
    """Allow the origin of the page, and allow long unread answers."""
    return {"server": {"cors_origins": [origin]}, "streaming": {"stream_buffer_bytes": 2 * UNREAD_BYTES}}


@pytest.fixture
def slotgate_script() -> dict[str, Any]:
    """One slot, and an answer that is longer than browser and sockets hold."""
    word = " " + "x" * 32_000
    long = "The answer." + word * (UNREAD_BYTES // len(word))
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


def test_a_browser_that_stops_reading_does_not_block_the_next_turn(
    page: Any, origin: str, slotgate: Any, scripted_llama: Any
) -> None:
    page.goto(page_url(origin, slotgate.url, slotgate.key, wedge="The answer."))
    send(page, "the first question")
    page.wait_for_selector("li[data-state=wedged]", timeout=TIMEOUT_MS)

    send(page, "the next question")
    page.wait_for_selector("li:nth-child(2)[data-state=complete]", timeout=TIMEOUT_MS)
    assert page.text_content("li:nth-child(2)") == "The next answer."
    assert "running" in outcomes(slotgate)  # the first stream is still open
    assert scripted_llama.ever_deferred == 0


def outcomes(slotgate: Any) -> list[str]:
    """Return the outcomes of the requests, as the operator sees them."""
    headers = {"Authorization": f"Bearer {slotgate.operator_key}"}
    request = urllib.request.Request(f"{slotgate.url}/admin/requests", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return [entry["outcome"] for entry in json.load(answer)["requests"]]
