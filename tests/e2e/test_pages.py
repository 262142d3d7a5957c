"""The files of the operators' pages: their headers, and the files that they may refer to."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from slotgate.gateway.admin.page_files import PageFiles
from slotgate.gateway.auth.keys import hash_key
from tests.support.answer import fetch
from tests.support.gateway import running_gateway, settings_for

pytestmark = pytest.mark.anyio

SERVER = {"port": 0, "operator_key_hashes": [hash_key("sg-operator")]}
FOLDER = files("slotgate.gateway.admin.pages")
NAMES = sorted(entry.name for entry in FOLDER.iterdir() if not entry.name.startswith(("__", "frame.")))
PAGES = PageFiles()
STATIC = [name for name in NAMES if not name.endswith(".html")]
PLACES = ["/admin", "/admin/chat", *(f"/admin/static/{name}" for name in STATIC)]
SETTINGS = settings_for("http://127.0.0.1:9", server=SERVER)


def text_of(name: str) -> str:
    """Return a file as a browser gets it."""
    file = PAGES.static(name) or PAGES.page(name)
    return file.content.decode()


@pytest.mark.parametrize("place", PLACES)
async def test_every_file_has_its_content_type_a_strict_policy_and_an_etag(place: str) -> None:
    kinds = {"css": b"text/css", "js": b"text/javascript", "svg": b"image/svg+xml"}
    kind = kinds.get(place.rpartition(".")[2], b"text/html")
    async with running_gateway(SETTINGS, ready=False) as gateway:
        answer = await fetch(gateway.url, "GET", place)
        again = await fetch(gateway.url, "GET", place, b"if-none-match: " + (answer.header(b"etag") or b""))
    assert answer.status == 200
    assert (answer.header(b"content-type") or b"").startswith(kind)
    assert (again.status, again.body) == (304, b"")
    for got in (answer, again):
        policy = (got.header(b"content-security-policy") or b"").decode().split("; ")
        assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= {
            *policy
        }
        assert not any("unsafe" in rule or "http" in rule or "*" in rule for rule in policy)
        assert got.header(b"x-content-type-options") == b"nosniff"
        assert got.header(b"referrer-policy") == b"no-referrer"
        assert got.header(b"cache-control") == b"no-cache"


@pytest.mark.parametrize(
    "name", ["dashboard.html", "frame.html", "__init__.py", "none.js", "..%2f__init__.py", "%2e%2e"]
)
async def test_other_names_are_not_served(name: str) -> None:
    async with running_gateway(SETTINGS, ready=False) as gateway:
        answer = await fetch(gateway.url, "GET", f"/admin/static/{name}")
    assert (answer.status, answer.error["code"]) == (404, "unknown_path")


async def test_the_root_path_redirects_to_the_playground() -> None:
    async with running_gateway(SETTINGS, ready=False) as gateway:
        answer = await fetch(gateway.url, "GET", "/")
    assert (answer.status, answer.header(b"location")) == (307, b"/admin/chat")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_refers_only_to_existing_files_of_the_gateway(name: str) -> None:
    text = text_of(name)
    imported = re.findall(r'from "\./([^"]+)"', text)
    linked = re.findall(r'(?:src|href)="/admin/static/([^"]+)"', text)
    assert [target for target in (*imported, *linked) if target not in NAMES] == []
    outside = [url for url in re.findall(r"https?://[^\s\"'`]*", text) if "www.w3.org" not in url]
    assert outside == []


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_no_inline_code_and_makes_no_markup_from_text(name: str) -> None:
    text = text_of(name)
    assert not re.search(r"\sstyle=|\son[a-z]+=\"|javascript:", text)
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    assert not re.search(r"localStorage|sessionStorage|indexedDB|document\.cookie", text)


def test_every_module_is_used() -> None:
    texts = {name: text_of(name) for name in NAMES}
    unused = [
        name for name in STATIC if not any(name in text for other, text in texts.items() if other != name)
    ]
    assert unused == []
