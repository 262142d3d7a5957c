"""A real Chromium for the operator's pages, with the errors that it reported."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.support.operated import OPERATOR_KEY, Operated

AXE = Path(__file__).parent.parent / "clients/node/node_modules/axe-core/axe.min.js"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LIGHT = {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"}
DARK = {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"}
PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2}
WAIT_MS = 10_000


def chromium() -> str | None:
    """Start the system's browser. Playwright's own downloads are not used."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


@contextmanager
def running_browser(program: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Look:
    """An operator's browser tab. `complaints` are the errors of the console and of scripts."""

    def __init__(self, browser: Browser, gateway: Operated, **options: Any) -> None:  # noqa: ANN401
        self.gateway = gateway
        self.complaints: list[str] = []
        self.context: BrowserContext = browser.new_context(reduced_motion="reduce", **(LIGHT | options))
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def goto(self, path: str) -> Page:
        self.page.goto(self.gateway.url + path)
        return self.page

    def signed_in(self, path: str) -> Page:
        """Open the page and sign in through its form."""
        page = self.goto(path)
        page.get_by_label("Operator key").fill(OPERATOR_KEY)
        page.get_by_role("button", name="Sign in").click()
        page.locator("#content").wait_for()
        return page

    def violations(self) -> list[str]:
        """Return what axe reports against WCAG 2.2 A and AA and its own best practices."""
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("() => axe.run()")
        return [
            f"{rule['id']}: {node['target']} {node.get('failureSummary', '')}"
            for rule in found["violations"]
            for node in rule["nodes"]
        ]

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)
