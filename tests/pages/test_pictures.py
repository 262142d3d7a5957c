"""Takes the pictures of the README. Only `make screenshots` runs these tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browsing import DARK, LIGHT, PHONE, Look
from tests.support.llama import RealLlama
from tests.support.operated import TENANTS, Operated

FOLDER = os.environ.get("SLOTGATE_SCREENSHOTS", "")
MOST_BYTES = 150_000
WIDE = {"viewport": {"width": 1280, "height": 1240}}
TALL = PHONE | {"viewport": {"width": 390, "height": 1180}, "device_scale_factor": 1.5}
pytestmark = pytest.mark.skipif(not FOLDER, reason="SLOTGATE_SCREENSHOTS names no folder for pictures")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> Iterator[Operated]:
    """A gateway with six slots and a minute and a half of history."""
    with (
        RealLlama(small_model, slots=6, context=12288) as llama,
        Operated(tmp_path_factory.mktemp("busy"), llama.url, "smollm2-135m") as gateway,
    ):
        for number in range(24):
            tenant, story = TENANTS[number % 2], "Hello! " * (1 + 20 * number % 7)
            width = 1 + number % 4
            for thread in [gateway.begin(tenant, story, max_tokens=60 + 50 * width) for _ in range(width)]:
                thread.join(60)
        yield gateway


def in_state(page: Page, state: str, number: int) -> None:
    expect(page.locator(f'.backend .cell[data-state="{state}"]')).to_have_count(number)


def taken(page: Page, name: str, **options: Any) -> None:  # noqa: ANN401
    path = Path(FOLDER) / f"{name}.png"
    page.screenshot(path=path, **options)
    assert path.stat().st_size < MOST_BYTES


@pytest.mark.parametrize(
    ("name", "options"),
    [("dashboard", LIGHT | WIDE), ("dashboard-dark", DARK | WIDE), ("dashboard-phone", TALL)],
)
def test_a_picture_of_the_dashboard(
    browser: Browser, busy: Operated, name: str, options: dict[str, Any]
) -> None:
    long_prompt = f"Once upon a time there was a {name}. " * 180
    with ExitStack() as running:
        page = Look(browser, busy, **options).signed_in("/admin")
        for tenant in ("team-a", "team-b", "team-a", "team-b"):
            story: dict[str, Any] = {"max_tokens": 1500, "ignore_eos": True}
            running.enter_context(busy.stream(tenant, "Tell me a story.", **story))
        with busy.unread("team-a", long_prompt):
            in_state(page, "prefill", 1)
        waiting = [busy.begin("team-b", f"{long_prompt} Once more.", max_tokens=8)]
        expect(page.locator('.cell[data-state="prefill"]', has_text="team-b")).to_be_visible()
        waiting += [busy.begin(tenant, "Hi", max_tokens=4) for tenant in ("team-a", "team-b", "team-b")]
        for state, number in {"generating": 4, "prefill": 1, "quarantined": 1}.items():
            in_state(page, state, number)
        expect(page.locator("#queue li")).to_have_count(2)
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
    page.get_by_label("Your message").fill("What is a gateway?")
    page.keyboard.press("Enter")
    expect(page.locator(".message .said")).to_have_count(1, timeout=60_000)
    page.get_by_text("The same request with curl").click()
    page.evaluate("() => scrollTo(0, 0)")
    taken(page, name, full_page=True)
    page.context.close()
