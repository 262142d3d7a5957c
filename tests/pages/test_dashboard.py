"""The dashboard in a real browser, in front of a real llama-server."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.pages.conftest import Looks
from tests.support.operated import Operated

LONG: dict[str, Any] = {"max_tokens": 1500, "ignore_eos": True}
"""A stream that runs until it is cancelled."""


def count(page: Page, state: str, number: int) -> None:
    """Wait until this number of slots is in the state."""
    expect(page.locator(f'.backend .cell[data-state="{state}"]')).to_have_count(number, timeout=10_000)


def test_signing_in_refuses_a_wrong_key_and_hides_the_key_from_scripts(
    look: Looks,
) -> None:
    one = look()
    page = one.goto("/admin")
    page.get_by_label("Operator key").fill("sg-wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("This is not the operator key.")
    assert len(one.complaints) == 1, "the browser notes the 401"
    assert "401" in one.complaints.pop()
    page = one.signed_in("/admin")
    count(page, "idle", 2)
    expect(page.get_by_role("status")).to_have_text("Live")
    stored = page.evaluate(
        "() => [document.cookie, localStorage.length, sessionStorage.length, location.href]"
    )
    assert stored == ["", 0, 0, f"{one.gateway.url}/admin"]
    page.reload()
    count(page, "idle", 2)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Operator key")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Operator key")).to_be_visible()


def test_signing_out_in_one_tab_signs_out_all_tabs(look: Looks) -> None:
    one = look()
    first = one.signed_in("/admin")
    second = one.context.new_page()
    second.goto(f"{one.gateway.url}/admin")
    expect(second.locator("#content")).to_be_visible()
    second.get_by_role("button", name="Sign out").click()
    for page in (first, second):
        expect(page.get_by_label("Operator key")).to_be_visible()
    second.reload()
    expect(second.get_by_label("Operator key")).to_be_visible()


@pytest.mark.parametrize(("path", "name"), [("/admin", "Dashboard"), ("/admin/chat", "Playground")])
def test_the_navigation_marks_the_current_page(look: Looks, path: str, name: str) -> None:
    page = look().goto(path)
    expect(page).to_have_title(f"{name} · slotgate")
    expect(page.locator("nav a[aria-current=page]")).to_have_text([name])


def test_a_stream_is_shown_in_its_slot_and_then_among_ended_requests(look: Looks, operated: Operated) -> None:
    page = look().signed_in("/admin")
    count(page, "idle", 2)
    with operated.stream("team-a", "Tell me a story.", max_tokens=60, ignore_eos=True) as stream:
        cell = page.locator('.backend .cell[data-state="generating"]')
        expect(cell).to_contain_text("team-a")
        expect(page.locator("#tenants li", has_text="team-a")).to_contain_text("1 slot")
        stream.rest()
    count(page, "idle", 2)
    row = page.locator("#requests > li").first
    expect(row).to_contain_text("team-a")
    expect(row).to_contain_text("60 tokens")
    parts = re.compile("queue .* prefill .* stream")
    expect(row.get_by_role("img")).to_have_attribute("aria-label", parts)


def test_queued_requests_are_shown_by_tenant(look: Looks, operated: Operated) -> None:
    page = look().signed_in("/admin")
    with operated.stream("team-a", "one", **LONG), operated.stream("team-a", "two", **LONG):
        count(page, "idle", 0)
        waiting = operated.begin("team-b", "three", max_tokens=1)
        row = page.locator("#queue li")
        expect(row).to_contain_text("team-b")
        expect(row).to_contain_text("1 waiting")
    waiting.join(20)
    expect(page.locator("#queue li")).to_have_count(0)


def test_cancel_asks_for_confirmation_and_frees_the_slot(look: Looks, operated: Operated) -> None:
    page = look().signed_in("/admin")
    with operated.stream("team-a", "Tell me a story.", **LONG) as stream:
        count(page, "generating", 1)
        page.get_by_role("button", name=f"Cancel request {stream.id}").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(stream.id)
        dialog.get_by_role("button", name="Keep as it is").click()
        count(page, "generating", 1)
        page.get_by_role("button", name=f"Cancel request {stream.id}").click()
        dialog.get_by_role("button", name="Cancel request").click()
        count(page, "idle", 2)
        assert '"code":"cancelled"' in stream.rest()
    expect(page.locator("#requests > li").first).to_contain_text("cancelled")


def test_a_backend_can_be_drained_and_resumed_by_keyboard(look: Looks) -> None:
    page = look().signed_in("/admin")
    state = page.locator(".backend .pill")
    expect(state).to_have_text("ready")
    drain = page.get_by_role("button", name="Drain gpu0")
    drain.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Keep as it is")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(drain).to_be_focused()
    expect(state).to_have_text("ready")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Keep as it is")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("dialog").get_by_role("button", name="Drain")).to_be_focused()
    page.keyboard.press("Enter")
    expect(state).to_have_text("draining")
    page.get_by_role("button", name="Resume gpu0").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(state).to_have_text("ready")


def test_the_page_shows_that_it_is_stale_and_reconnects(look: Looks, restarted: Operated) -> None:
    one = look(restarted)
    page = one.signed_in("/admin")
    expect(page.get_by_text("Live")).to_be_visible()
    restarted.stop()
    expect(page.get_by_text("Disconnected")).to_be_visible()
    expect(page.locator("#stale")).to_contain_text("Reconnecting")
    restarted.start()
    expect(page.get_by_text("Live")).to_be_visible()
    expect(page.locator("#stale")).to_be_hidden()
    count(page, "idle", 2)
    assert all("net::ERR" in text for text in one.complaints), one.complaints
    one.complaints.clear()


def test_a_page_asks_for_the_key_again_after_a_restart(look: Looks, restarted: Operated) -> None:
    one = look(restarted)
    one.signed_in("/admin")
    page = one.goto("/admin")
    expect(page.get_by_text("Live")).to_be_visible()
    restarted.stop()
    restarted.start()
    expect(page.get_by_label("Operator key")).to_be_visible()
    one.complaints.clear()


def test_on_a_phone_nothing_is_wider_than_the_screen(look: Looks, operated: Operated) -> None:
    page = look(viewport={"width": 360, "height": 740}).signed_in("/admin")
    with operated.stream("team-a", "one", **LONG):
        count(page, "generating", 1)
        for path in ("/admin", "/admin/chat"):
            page.goto(operated.url + path)
            page.locator("#content").wait_for()
            assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
