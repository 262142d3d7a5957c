"""A chat in a browser, and a chat whose stream fails.

The workflow runs it by `slotgate ci -- python browser_chat.py`.
"""

import functools
import http.server
import os
import sys
import threading

from browser import FOLDER, browser, chromium, page_url, send

PORT = 8765  # the origin that the workflow names with --allow-origin


def main() -> None:
    program = chromium()
    if program is None:
        sys.exit("no Chromium here")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(FOLDER))
    with http.server.ThreadingHTTPServer(("127.0.0.1", PORT), handler) as server, browser(program) as running:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = running.new_page()
        page.goto(
            page_url(f"http://127.0.0.1:{PORT}", os.environ["SLOTGATE_URL"], os.environ["SLOTGATE_KEY"])
        )
        send(page, "How is the weather?")
        page.wait_for_selector("li[data-state=complete]", timeout=20_000)
        assert page.text_content("li") == "Rain, as ever."
        send(page, "Please break")
        page.wait_for_selector("li:nth-child(2)[data-state=failed]", timeout=20_000)
        server.shutdown()


if __name__ == "__main__":
    main()
