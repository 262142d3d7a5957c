"""The size of a prompt: payloads in base64 are taken out of its text, and counted apart."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from slotgate.gateway.api.prompt_size import PromptSize, measured

PAYLOAD = base64.b64encode(b"x" * 3000).decode()
URL = f"data:image/png;base64,{PAYLOAD}"


def of(**members: Any) -> PromptSize:  # noqa: ANN401
    body = orjson.dumps(members)
    return measured(members, body)


def message(*parts: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"messages": [{"role": "user", "content": list(parts)}]}


PICTURES: dict[str, dict[str, Any]] = {
    "OpenAI chat": message({"type": "image_url", "image_url": {"url": URL}}),
    "OpenAI chat, URL as text": message({"type": "image_url", "image_url": URL}),
    "OpenAI Responses": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}]},
    "OpenAI file": message({"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PAYLOAD}"}}),
    "OpenAI file without a URL": message({"type": "file", "file": {"file_data": PAYLOAD}}),
    "Anthropic": message(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PAYLOAD}}
    ),
    "Anthropic tool result": message(
        {
            "type": "tool_result",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PAYLOAD}}
            ],
        }
    ),
    "llama.cpp": {"prompt": {"prompt_string": "a", "multimodal_data": [PAYLOAD]}},
    "llama.cpp, older": {"prompt": "a", "image_data": [{"data": PAYLOAD, "id": 1}]},
}


@pytest.mark.parametrize("members", PICTURES.values(), ids=PICTURES)
def test_picture_is_no_text(members: dict[str, Any]) -> None:
    size = of(**members)
    assert (size.pictures, size.audio_bytes) == (1, 0)
    assert size.text_bytes < 250


@pytest.mark.parametrize("data", [PAYLOAD, f"data:audio/wav;base64,{PAYLOAD}"], ids=["base64", "URL"])
def test_audio_is_counted_by_its_decoded_bytes(data: str) -> None:
    size = of(**message({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}))
    assert size.pictures == 0
    assert size.audio_bytes == pytest.approx(3000, abs=20)
    assert size.text_bytes < 250


def test_slashes_of_a_payload_that_are_escaped_are_no_text() -> None:
    members = message({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "//8A" * 10_000}})
    size = measured(members, orjson.dumps(members).replace(b"/", b"\\/"))
    assert size.pictures == 1
    assert size.text_bytes < 250


def test_picture_that_the_backend_fetches_counts() -> None:
    assert of(**message({"type": "image_url", "image_url": {"url": "https://host/a.png"}})).pictures == 1


def test_text_is_text() -> None:
    body = {"messages": [{"role": "user", "content": 'say "data:" and {"data": 1}'}], "data": {"a": "b"}}
    assert of(**body) == PromptSize(len(orjson.dumps(body)))


@pytest.mark.parametrize(
    "text",
    [
        "data: {}\n\n" * 10_000,
        "data:" + "a word " * 10_000,
        "data:text/plain;base64," + "no base64 at all. " * 5_000,
        "data:image/png;base64," + "A" * 100 + " and then a long story" * 5_000,
    ],
    ids=["a stream of events", "a word", "words as payload", "words behind a payload"],
)
def test_text_that_looks_like_a_data_url_is_text(text: str) -> None:
    """An estimate that is too small lets requests into a shared context that cannot hold them."""
    body = message({"type": "text", "text": text})
    assert of(**body) == PromptSize(len(orjson.dumps(body)))
    source = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": text}}
    assert of(**message(source)).pictures == 0


def test_deep_and_wide_bodies_are_walked_within_bounds() -> None:
    deep: Any = PAYLOAD
    for _ in range(200):
        deep = [deep]
    size = of(deep=deep, data="data:", wide=[[]] * 200_000)
    assert size.text_bytes > 600_000
