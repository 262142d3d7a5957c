"""No request makes a backend fetch media from a host that the operator did not allow."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from slotgate.gateway.api.media_locations import AllowedMedia, MediaSearch
from slotgate.gateway.api.request_reader import RequestReader
from slotgate.gateway.http.errors import ClientError
from slotgate.gateway.settings import ServerSettings
from tests.support.endpoints import WAYS, Way

URL = "http://10.0.0.1/admin.png"
PNG = "data:image/png;base64,iVBORw0KGgo="
AUDIO = "UklGRiQAAABXQVZF"


def part(location: str) -> dict[str, Any]:
    """Every form of a content part that has named media by URL, here or in another server of this kind."""
    return {
        "image_url.url": {"type": "image_url", "image_url": {"url": location}},
        "image_url": {"type": "image_url", "image_url": location},
        "audio_url.url": {"type": "audio_url", "audio_url": {"url": location}},
        "video_url.url": {"type": "video_url", "video_url": {"url": location}},
        "input_audio.data": {"type": "input_audio", "input_audio": {"data": location, "format": "wav"}},
        "input_audio.url": {"type": "input_audio", "input_audio": {"url": location}},
        "input_video.data": {"type": "input_video", "input_video": {"data": location}},
        "input_video.url": {"type": "input_video", "input_video": {"url": location}},
        "source.url": {"type": "image", "source": {"type": "url", "url": location}},
        "image": {"type": "image", "image": location},
        "video[0]": {"type": "video", "video": [location]},
        "file.file_data": {"type": "file", "file": {"file_data": location}},
        "file_url": {"type": "input_file", "file_url": location},
        "file_data": {"type": "input_file", "file_data": location},
        "content[0].source.url": {
            "type": "tool_result",
            "content": [{"type": "image", "source": {"type": "url", "url": location}}],
        },
        "output[0].image_url": {
            "type": "function_call_output",
            "output": [{"type": "input_image", "image_url": location}],
        },
        "multimodal_data[0]": {"prompt_string": "", "multimodal_data": [location]},
        "image_data[0].data": {"image_data": [{"data": location, "id": 1}]},
    }


FORMS = list(part(URL))
JSON_WAYS = [way for way in WAYS if not way.endpoint.multipart]


def with_part(way: Way, given: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the members of a request of this endpoint that holds the part, and the path to the part."""
    if "messages" in way.sample.body:
        return {"messages": [{"role": "user", "content": [given]}]}, "messages[0].content[0]"
    if way.endpoint.name == "responses":
        return {"input": [{"role": "user", "content": [given]}]}, "input[0].content[0]"
    [*_, name] = [name for name in ("prompt", "input", "content") if name in way.sample.body] or ["prompt"]
    return {name: [given, "and a text"]}, f"{name}[0]"


def read(way: Way, members: dict[str, Any], *hosts: str) -> None:
    body, _ = way.body(**members)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def main() -> None:
        reader = RequestReader(ServerSettings(allowed_media_hosts=hosts))
        await reader.read(way.endpoint, {"type": "http", "headers": []}, receive)

    asyncio.run(main())


@pytest.mark.parametrize("way", JSON_WAYS, ids=repr)
def test_every_endpoint_refuses_every_form_of_a_url_and_names_the_member(way: Way) -> None:
    for form in FORMS:
        members, place = with_part(way, part(URL)[form])
        with pytest.raises(ClientError) as refused:
            read(way, members)
        error = refused.value
        assert (error.status, error.code, error.param) == (400, "invalid_request", f"{place}.{form}")
        assert repr(URL) in error.message, form
        assert "allowed_media_hosts" in error.message


@pytest.mark.parametrize("way", JSON_WAYS, ids=repr)
def test_every_endpoint_takes_media_inside_the_request_and_urls_of_allowed_hosts(way: Way) -> None:
    for form in FORMS:
        for location in (PNG, AUDIO, URL):
            read(way, with_part(way, part(location)[form])[0], "10.0.0.1")


REFUSED = [
    "http://pics.example.com@evil.example/a.png",
    "http://user:password@pics.example.com/a.png",
    "http://pics.example.com/a@evil.example/",
    "http://pics.example.com?x/a@evil.example",
    "http://pics.example.com?x",
    "http://pics.example.com#x",
    "http://pics.example.com\\.evil.example/",
    "http://pics.example.com:8080/a.png",
    "http://pics.example.com:80x/a.png",
    "http://pics.example.com:/a.png",
    "http://pics.example.com./a.png",
    "http://evil.example/pics.example.com",
    "http://notpics.example.com/a.png",
    "http://pics.example.com.evil.example/a.png",
    "http://cdn.example.org.evil.example/",
    "http://example.org/a.png",
    "http://.example.org/a.png",
    "http://evilexample.org/a.png",
    "http://pics.example.com/a b",
    "http://pics.example.com/\n",
    "http://pics.example.com/é",
    "http://pic\u0455.example.com/a.png",
    "http://[::1]/a.png",
    "http://[::ffff:10.0.0.1]/",
    "http://127.0.0.1/",
    "http://2130706433/",
    "http://0x7f.1/",
    "http://localhost:8081/slots",
    "http:/pics.example.com/a.png",
    "http:pics.example.com",
    "httpx://pics.example.com/",
    "HTTP://pics.example.com/",
    " http://pics.example.com/a.png",
    "\thttp://pics.example.com/a.png",
    "file:///etc/passwd",
    "file://pics.example.com/a.png",
    "FILE:///etc/passwd",
    "ftp://pics.example.com/a.png",
    "gopher://pics.example.com/",
    "unix:/run/docker.sock",
    "javascript:alert(1)",
    "c:\\pictures\\a.png",
]
ALLOWED = [
    "http://pics.example.com/a.png",
    "https://pics.example.com/a.png?size=1#x",
    "https://pics.example.com",
    "http://PICS.Example.com/a.png",
    "http://pics.example.com:80/a.png",
    "https://pics.example.com:443/",
    "https://a.b.example.org/a.png",
    "http://cdn.example.org/a.png",
    "http://other.example:9000/a.png",
    "http://10.0.0.1/a.png",
    "",
    "a.png",
    "data:image/png;base64,AAAA",
    "DATA:image/png;base64,AAAA",
    "httpAAAAbase64of+bytes/that=",
]
HOSTS = ("pics.example.com", "*.example.org", "other.example:9000", "10.0.0.1")


def check(location: str, *hosts: str) -> None:
    AllowedMedia(hosts).check({"messages": [part(location)["image_url.url"]]})


@pytest.mark.parametrize("location", REFUSED)
def test_a_url_that_does_not_plainly_name_an_allowed_host_is_refused(location: str) -> None:
    for hosts in (HOSTS, ()):
        with pytest.raises(ClientError) as refused:
            check(location, *hosts)
        assert refused.value.param == "messages[0].image_url.url"


@pytest.mark.parametrize("location", ALLOWED)
def test_media_in_the_request_and_on_allowed_hosts_is_allowed(location: str) -> None:
    check(location, *HOSTS)


def test_a_star_allows_every_host_and_port_but_no_file_and_no_user() -> None:
    check("http://127.0.0.1:9000/a.png", "*")
    for location in ("file:///etc/passwd", "http://a@b/", "http://[::1]/"):
        with pytest.raises(ClientError):
            check(location, "*")


FETCHED_BY_NOBODY: dict[str, dict[str, Any]] = {
    "a text about a URL": {"messages": [{"role": "user", "content": f"What is {URL}? url"}]},
    "a text part": {"messages": [{"role": "user", "content": [{"type": "text", "text": URL}]}]},
    "a tool's definition": {"tools": [{"function": {"parameters": {"image_url": URL}}}]},
    "a tool's arguments": {"messages": [{"tool_calls": [{"function": {"arguments": {"image_url": URL}}}]}]},
    "Anthropic's tool_use": {"messages": [{"content": [{"type": "tool_use", "input": {"image_url": URL}}]}]},
    "a citation": {"input": [{"content": [{"annotations": [{"type": "url_citation", "url": URL}]}]}]},
    "a search result": {"messages": [{"content": [{"type": "search_result", "source": URL}]}]},
    "a text document": {
        "messages": [{"content": [{"source": {"type": "text", "data": "note: a text", "url": None}}]}]
    },
    "metadata": {"metadata": {"image_url": URL}},
    "a schema": {"response_format": {"json_schema": {"properties": {"image_url": {"url": URL}}}}},
}


@pytest.mark.parametrize("case", FETCHED_BY_NOBODY)
def test_a_url_that_no_server_fetches_is_not_refused(case: str) -> None:
    AllowedMedia().check(FETCHED_BY_NOBODY[case])


def test_escapes_in_names_and_values_hide_nothing() -> None:
    body = rb'{"messages":[{"content":[{"im\u0061ge_url":{"\u0075rl":"\u0068ttp:\/\/10.0.0.1\/"}}]}]}'
    with pytest.raises(ClientError):
        AllowedMedia().check(orjson.loads(body))


@pytest.mark.parametrize("most", [1, 2, 7, 1000])
@pytest.mark.parametrize("form", FORMS)
def test_a_search_in_parts_finds_what_a_whole_search_finds(form: str, most: int) -> None:
    plain = [{"role": "user", "content": "hi"}] * 20
    search = MediaSearch(AllowedMedia(), {"messages": [*plain, part(URL)[form], *plain], "prompt": [1] * 50})
    with pytest.raises(ClientError) as refused:
        any(search.go(most) for most in range(most, 2000))
    assert refused.value.param == f"messages[20].{form}"


def test_deep_nesting_is_looked_through_and_a_long_url_is_shown_in_part() -> None:
    deep: Any = part("http://10.0.0.1/" + "a" * 5000)["image_url.url"]
    for _ in range(1000):
        deep = [deep]
    with pytest.raises(ClientError) as refused:
        AllowedMedia().check({"messages": deep, "a" * 5000: part(URL)})
    assert len(refused.value.message) < 500
    assert len(refused.value.param or "") < 200


@pytest.mark.parametrize("before", [0, 10, 2_000, 20_000])
def test_a_url_is_found_behind_any_number_of_other_values(before: int) -> None:
    [way] = [way for way in JSON_WAYS if way.path == "/v1/chat/completions"]
    message = {"role": "user", "content": [part(URL)["image_url.url"]]}
    for messages in ([*[{"role": "user"}] * before, message], [message, *[{"role": "user"}] * before]):
        with pytest.raises(ClientError, match="allowed_media_hosts"):
            read(way, {"messages": messages, "numbers": [1] * before})
