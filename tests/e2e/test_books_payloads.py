"""Pictures, audio and files in base64 over a running gateway use up no day, and wait for no empty server.

Fourteen pictures of 1.5 MB in a day of 5,000,000 tokens are scaled down by 32, which leaves the proportions
as they are. As text they would need 1.4 days.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import orjson
import pytest

from slotgate.gateway.auth.keys import hash_key
from tests.support.client import request_bytes
from tests.support.gateway import CHAT, settings_for
from tests.support.llama_like import LlamaLike
from tests.support.notation import answer
from tests.support.script import Gate, Script, Write
from tests.support.virtual_gateway import VirtualUpstream, virtual_gateway
from tests.support.virtual_time import run_virtual

REQUESTS = 14
SCALE = 32
TOKENS_PER_DAY = 5_000_000 // SCALE
PAYLOAD = base64.b64encode(bytes(range(256)) * (1_500_000 // 256 // SCALE)).decode()
URL = f"data:image/png;base64,{PAYLOAD}"
SOURCE = {"type": "base64", "media_type": "image/png", "data": PAYLOAD}
COUNTED = {"prompt_tokens": 800, "completion_tokens": 3}
SHARED_CONTEXT = REQUESTS * 3000
"""Tokens that all slots share. Each prompt is estimated to have 2,300 at most, and the answers are short."""


def message(part: Any, role: str = "user") -> dict[str, Any]:  # noqa: ANN401
    return {
        "messages": [{"role": "user", "content": "hi"}, {"role": role, "content": [part]}],
        "max_tokens": 9,
    }


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "picture": (CHAT, message({"type": "image_url", "image_url": {"url": URL}})),
    "audio": (CHAT, message({"type": "input_audio", "input_audio": {"data": PAYLOAD, "format": "wav"}})),
    "file": (CHAT, message({"type": "file", "file": {"file_data": URL}})),
    "file without a URL": (CHAT, message({"type": "file", "file": {"file_data": PAYLOAD}})),
    "result of a tool": (CHAT, message({"type": "image_url", "image_url": {"url": URL}}, role="tool")),
    "source": ("/v1/messages", message({"type": "image", "source": SOURCE})),
    "tool_result": (
        "/v1/messages",
        message(
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": SOURCE}]}
        ),
    ),
    "input_image": (
        "/v1/responses",
        {
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}],
            "max_output_tokens": 9,
        },
    ),
    "multimodal_data": (
        "/completion",
        {"prompt": {"prompt_string": "a", "multimodal_data": [PAYLOAD]}, "n_predict": 9},
    ),
    "image_data": (
        "/completion",
        {"prompt": "a", "image_data": [{"data": PAYLOAD, "id": 1}], "n_predict": 9},
    ),
}


@pytest.mark.parametrize("kind", BODIES)
def test_payloads_are_no_text(kind: str) -> None:
    path, body = BODIES[kind]
    assert len(orjson.dumps(body)) * REQUESTS / 4 > TOKENS_PER_DAY, "as text, they would be too many"

    async def main() -> list[int]:
        gate = Gate()
        said = {"choices": [], "usage": COUNTED, "timings": {"prompt_n": 800, "predicted_n": 3}}
        script: Script = [gate, Write(answer(200, said))]
        llama = LlamaLike(REQUESTS, n_ctx=SHARED_CONTEXT)
        async with VirtualUpstream(scripts={path: script}, llama=llama) as fu:
            backend = {"name": "gpu", "url": fu.url, "models": ["m"], "kv_unified": True}
            tenant = {"name": "a", "key_hashes": [hash_key("sg-a")], "tokens_per_day": TOKENS_PER_DAY}
            async with virtual_gateway(settings_for(backend=[backend], tenant=[tenant])) as gateway:
                clients = [await gateway.client() for _ in range(REQUESTS)]
                for client in clients:
                    await client.send(request_bytes("POST", path, b"authorization: Bearer sg-a", json=body))
                await gateway.until(lambda: len(fu.generations) == REQUESTS, within=1)
                gate.event.set()
                statuses = [int((await client.head()).start_line.split(b" ")[1]) for client in clients]
                await gateway.until_idle()
                assert gateway.parts.runtime.limiter.used_today("a") == REQUESTS * 803
                await asyncio.gather(*(client.body() for client in clients))
                return statuses

    assert run_virtual(main()) == [200] * REQUESTS
