"""The system's browser, driven by Playwright, and a web server for the page of the application.

Playwright's own browsers are not downloaded.
"""

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

FOLDER = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str | None:
    """Return the browser of the system, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextlib.contextmanager
def browser(program: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=list(OPTIONS))
        try:
            yield running
        finally:
            running.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Drop the log, because it is not read."""


@contextlib.contextmanager
def served_page() -> Iterator[str]:
    """Serve the pages of the folder, as the application's web server would. Yields the origin."""
    handler = functools.partial(_Quiet, directory=str(FOLDER))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def page_url(origin: str, gateway: str, key: str, **more: str) -> str:
    return f"{origin}/chat_page.html?{urlencode({'url': gateway, 'key': key, **more})}"


def send(page: Any, said: str) -> None:
    page.fill("#said", said)
    page.click("button")
