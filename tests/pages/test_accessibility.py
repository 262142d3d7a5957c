"""Both pages pass axe: signed out and in, in light, in dark and on a phone, idle and busy."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.pages.conftest import Looks
from tests.support.browsing import AXE, DARK, LIGHT, PHONE
from tests.support.operated import Operated

pytestmark = pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: there was no npm")
IN_EVERY_LIGHT = pytest.mark.parametrize("options", [LIGHT, DARK, PHONE], ids=["light", "dark", "phone"])


@IN_EVERY_LIGHT
def test_the_dashboard_keeps_the_rules(look: Looks, operated: Operated, options: dict[str, Any]) -> None:
    one = look(**options)
    page = one.goto("/admin")
    expect(page.get_by_label("Operator key")).to_be_visible()
    assert one.violations() == []
    page = one.signed_in("/admin")
    with operated.stream("team-a", "one", max_tokens=1500, ignore_eos=True):
        expect(page.locator('.backend .cell[data-state="generating"]')).to_have_count(1)
        assert one.violations() == []
        page.get_by_role("button", name="Drain gpu0").click()
        assert one.violations() == []


@IN_EVERY_LIGHT
def test_the_playground_keeps_the_rules(look: Looks, options: dict[str, Any]) -> None:
    one = look(**options)
    page = one.signed_in("/admin/chat")
    if options is PHONE:
        page.get_by_text("Settings").click()
    page.get_by_label("Max tokens").fill("8")
    page.get_by_label("Your message").fill("Hello!")
    page.keyboard.press("Enter")
    expect(page.locator(".message .said")).to_have_count(1)
    page.get_by_text("The same request with curl").click()
    assert one.violations() == []
