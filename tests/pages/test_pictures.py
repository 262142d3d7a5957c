"""The pictures of the README, taken of the real thing: `make screenshots`. Elsewhere they are not taken."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browsing import DARK, LIGHT, PHONE, Look
from tests.support.llama import RealLlama
from tests.support.operated import Operated

FOLDER = os.environ.get("SLOTGATE_SCREENSHOTS", "")
MOST_BYTES = 150_000
pytestmark = pytest.mark.skipif(not FOLDER, reason="SLOTGATE_SCREENSHOTS names no folder for pictures")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> Iterator[Operated]:
    """Six slots, with a past of some requests."""
    with (
        RealLlama(small_model, slots=6, context=12288) as llama,
        Operated(tmp_path_factory.mktemp("busy"), llama.url) as gateway,
    ):
        for number in range(8):
            with gateway.stream(
                ("team-a", "team-b")[number % 2], "Hello!", max_tokens=20 + 25 * number
            ) as one:
                one.rest()
        yield gateway


def in_state(page: Page, state: str, number: int) -> None:
    expect(page.locator(f'.backend .cell[data-state="{state}"]')).to_have_count(number)


def taken(page: Page, name: str, **options: Any) -> None:  # noqa: ANN401
    path = Path(FOLDER) / f"{name}.png"
    page.screenshot(path=path, **options)
    assert path.stat().st_size < MOST_BYTES


@pytest.mark.parametrize(
    ("name", "options"), [("dashboard", LIGHT), ("dashboard-dark", DARK), ("dashboard-phone", PHONE)]
)
def test_a_picture_of_the_dashboard(
    browser: Browser, busy: Operated, name: str, options: dict[str, Any]
) -> None:
    long_prompt = "Once upon a time there was a gateway. " * 180
    with ExitStack() as running:
        page = Look(browser, busy, **options).signed_in("/admin")
        for tenant in ("team-a", "team-b", "team-a", "team-b"):
            story: dict[str, Any] = {"max_tokens": 1500, "ignore_eos": True}
            running.enter_context(busy.stream(tenant, "Tell me a story.", **story))
        with busy.unread("team-a", long_prompt):
            in_state(page, "prefill", 1)
        waiting = [busy.begin("team-b", f"{long_prompt} Once more.", max_tokens=8)]
        waiting += [busy.begin(tenant, "Hi", max_tokens=4) for tenant in ("team-a", "team-b", "team-b")]
        for state, number in {"generating": 4, "prefill": 1, "quarantined": 1}.items():
            in_state(page, state, number)
        taken(page, name)
    for thread in waiting:
        thread.join(60)
    page.context.close()


@pytest.mark.parametrize(("name", "options"), [("playground", LIGHT), ("playground-dark", DARK)])
def test_a_picture_of_the_playground(
    browser: Browser, busy: Operated, name: str, options: dict[str, Any]
) -> None:
    page = Look(browser, busy, **options).signed_in("/admin/chat")
    page.get_by_label("System prompt").fill("You answer in one short paragraph.")
    page.get_by_label("Temperature").fill("0")
    for turn, text in enumerate(("What is a gateway?", "And what is a queue?"), 1):
        page.get_by_label("Your message").fill(text)
        page.keyboard.press("Enter")
        expect(page.locator(".message .said")).to_have_count(turn, timeout=60_000)
    page.get_by_text("The same request with curl").click()
    taken(page, name)
    page.context.close()
