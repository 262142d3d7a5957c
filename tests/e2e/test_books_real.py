"""The books beside llama-server's own counters, over a run of mixed requests.

llama-server counts the prompt tokens that it processed, without cached ones (`llamacpp:prompt_tokens_total`),
and the tokens of the answers that it finished (`llamacpp:tokens_predicted_total`). The records of finished
answers must add up to these counters, but for what the cut requests had in flight. llama-server processes the
prompt of several choices once, and counts it once for each choice.

`SLOTGATE_MIXED_REQUESTS` sets another number of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from slotgate.gateway.usage import UsageLedger, UsageRecord, UsageRecorder
from tests.support.client import RawClient, request_bytes
from tests.support.endpoints import STREAMING, Way
from tests.support.fixtures import RunLlama
from tests.support.gateway import Gateway, running_gateway, settings_for
from tests.support.llama import RealLlama
from tests.support.virtual_gateway import KeptRecords

pytestmark = pytest.mark.anyio

STREAMS = [way for way in STREAMING if way.path == way.endpoint.paths[0] and not way.endpoint.multipart]

REQUESTS = int(os.environ.get("SLOTGATE_MIXED_REQUESTS", "120"))
AT_ONCE = 12
SLOTS = 4
WORDS = ["the", "time", "of", "a", "year", "people", "have", "new", "hand", "every", "place", "work", "days"]
ENDINGS = ("stays",) * 17 + ("leaves", "leaves", "is cancelled")


@dataclass(frozen=True, slots=True)
class MixedRequest:
    path: str
    body: dict[str, Any]
    ending: str

    @property
    def choices(self) -> int:
        return int(self.body.get("n", 1))

    @property
    def most_prompt_tokens(self) -> int:
        """More than its prompts can have. A space can become three tokens, which are the bytes of U+2581."""
        return 3 * self.choices * len(orjson.dumps(self.body))

    @property
    def most_tokens(self) -> int:
        """The most tokens of answers that it can have in flight."""
        prompt = self.body.get("prompt")
        parts = len(prompt) if isinstance(prompt, list) else self.choices
        limits = ("max_tokens", "n_predict", "max_output_tokens")
        return parts * max(int(self.body.get(name, 0)) for name in limits)


@dataclass(frozen=True, slots=True)
class Books:
    records: list[UsageRecord]
    prompt: float
    """Prompt tokens, as llama-server counts them."""
    completion: float
    """Completion tokens, as llama-server counts them."""


def mixed_request(dice: random.Random) -> MixedRequest:
    """Return a request of a random form to a random endpoint. Those that will be cut are long."""
    ending = dice.choice(ENDINGS)
    tokens = dice.randint(1, 60) if ending == "stays" else dice.randint(200, 600)
    parts = dice.choice((1, 1, 2, 3))
    texts = [" ".join(dice.choices(WORDS, k=dice.randint(1, 120))) for _ in range(parts)]
    messages = [{"role": "user", "content": texts[0]}]
    choices = {"n": parts} if parts > 1 else {}
    prompts = {"prompt": texts if parts > 1 else texts[0]}
    forms: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/chat/completions", {"messages": messages, "max_tokens": tokens, **choices}),
        ("/v1/completions", {"max_tokens": tokens, **prompts}),
        ("/v1/completions", {"max_tokens": tokens, "prompt": texts[0], **choices}),
        ("/v1/responses", {"input": texts[0], "max_output_tokens": tokens}),
        ("/v1/messages", {"messages": messages, "max_tokens": tokens}),
        ("/completion", {"n_predict": tokens, **prompts}),
        ("/infill", {"input_prefix": texts[0], "input_suffix": "day", "n_predict": tokens}),
    )
    path, body = dice.choice(forms)
    return MixedRequest(path, {**body, "stream": dice.random() < 0.6}, ending)


async def play(gateway: Gateway, request: MixedRequest, name: str, patience_s: float) -> None:
    """Send a request and end it. Who leaves or is cancelled waits so long for the head of the answer."""
    async with await gateway.client() as client:
        named = b"x-request-id: " + name.encode()
        await client.send(request_bytes("POST", request.path, named, json=request.body))
        if request.ending == "stays":
            await _whole(client)
            assert client.status == 200
            return
        with contextlib.suppress(TimeoutError):
            await client.head(within=patience_s)
        if request.ending == "is cancelled":
            gateway.in_flight.cancel(name, None)
            await _whole(client)


async def _whole(client: RawClient) -> None:
    if client.response is None:
        await client.head(within=60)
    await client.body(within=60)


async def played(llama: RealLlama, requests: dict[str, MixedRequest], dice: random.Random) -> Books:
    """Play all requests, several at once, and return the books of both sides."""
    kept = KeptRecords()
    usage = UsageLedger(None, cast("UsageRecorder", kept))
    patience = {name: dice.uniform(0.0, 0.2) for name in requests}
    async with running_gateway(settings_for(llama.url), usage=usage) as gateway:
        gate = asyncio.Semaphore(AT_ONCE)

        async def gated(name: str) -> None:
            async with gate:
                await play(gateway, requests[name], name, patience[name])

        await asyncio.gather(*map(gated, requests))
        pool = gateway.fleet.backends["gpu0"].pool
        await gateway.until(lambda: pool.free == SLOTS, within=30)
        counted = await llama.metrics()
    assert len({record.request_id for record in kept.records}) == len(kept.records)
    return Books(kept.records, counted["prompt_tokens_total"], counted["tokens_predicted_total"])


async def test_records_of_finished_requests_are_exactly_the_counters_of_llama_server(
    run_llama: RunLlama, tiny_model: Path
) -> None:
    dice = random.Random(6)
    drawn = [mixed_request(dice) for _ in range(REQUESTS)]
    stay = [request for request in drawn if request.ending == "stays"]
    requests = {f"r{number}": request for number, request in enumerate(stay)}
    books = await played(run_llama(RealLlama(tiny_model, slots=SLOTS)), requests, dice)
    assert not any(record.partial for record in books.records)
    assert len(books.records) == len(requests)
    assert books.prompt == _prompt(books.records, requests)
    assert books.completion == _completion(books.records)


async def test_records_add_up_to_the_counters_of_llama_server_but_for_what_was_cut_in_flight(
    run_llama: RunLlama, tiny_model: Path
) -> None:
    dice = random.Random(5)
    requests = {f"r{number}": mixed_request(dice) for number in range(REQUESTS)}
    books = await played(run_llama(RealLlama(tiny_model, slots=SLOTS)), requests, dice)
    finished = [record for record in books.records if not record.partial]
    cut = [record for record in books.records if record.partial]
    print(f"{len(finished)} finished, {len(cut)} cut, {len(requests) - len(books.records)} never begun")
    print(f"prompt tokens: llama-server {books.prompt:.0f}, records {_prompt(finished, requests):.0f}")
    print(f"  {_prompt(cut, requests):.0f} of cut requests")
    print(f"completion tokens: llama-server {books.completion:.0f}, records {_completion(finished)}")
    print(f"  {_completion(cut)} of cut requests")
    in_flight = sum(requests[record.request_id].most_tokens for record in cut)
    assert 0 <= books.completion - _completion(finished) <= in_flight
    in_flight = sum(requests[record.request_id].most_prompt_tokens for record in cut)
    assert 0 <= books.prompt - _prompt(finished, requests) <= in_flight


def _prompt(records: Iterable[UsageRecord], requests: dict[str, MixedRequest]) -> float:
    """Return the processed prompt tokens, as llama-server counts them."""
    return sum((r.prompt_tokens - r.cached_tokens) * requests[r.request_id].choices for r in records)


def _completion(records: Iterable[UsageRecord]) -> int:
    return sum(record.completion_tokens for record in records)


# -- endings that can be brought about


LIMIT_NAMES = ("max_tokens", "max_completion_tokens", "n_predict", "max_output_tokens")
TOTAL_S = 0.4


async def heard_of(
    way: Way, gateway: Gateway, name: str, tokens: int, leaves_after: int | None = None
) -> int:
    """Stream an answer to its end, or leave after so many words. Return the number of words that came.

    Every token of the tiny model is one word.
    """
    limits = dict.fromkeys(LIMIT_NAMES, tokens)
    async with await gateway.client() as client:
        await client.send(way.request(b"x-request-id: " + name.encode(), model="m", stream=True, **limits))
        await client.head()
        assert client.status == 200
        frames = []
        async for frame in client.frames():
            frames.append(frame)
            if leaves_after is not None and len(frames) >= leaves_after:
                break
            if name == "cancelled" and len(frames) == 20:
                assert gateway.in_flight.cancel(name, None) == 1
        return len(way.text(frames).split())


@pytest.mark.parametrize("way", STREAMS, ids=repr)
async def test_endings_of_a_real_stream_are_counted_as_heard(tiny_llama: RealLlama, way: Way) -> None:
    kept = KeptRecords()
    usage = UsageLedger(None, cast("UsageRecorder", kept))
    settings = settings_for(tiny_llama.url, timeouts={"total_s": TOTAL_S})
    async with running_gateway(settings, usage=usage) as gateway:
        heard = {
            "length": await heard_of(way, gateway, "length", 30),
            "cancelled": await heard_of(way, gateway, "cancelled", 3500),
            "total": await heard_of(way, gateway, "total", 3500),
            "left": await heard_of(way, gateway, "left", 3500, leaves_after=20),
        }
        await gateway.until(lambda: len(kept.records) == len(heard))
    records = {record.request_id: record for record in kept.records}
    codes = {name: record.code for name, record in records.items()}
    assert codes == {"length": None, "cancelled": "cancelled", "total": "total_timeout", "left": None}
    partial = {name for name, record in records.items() if record.partial}
    assert partial == {"cancelled", "total", "left"}
    left = records.pop("left").completion_tokens
    assert heard.pop("left") <= left < 3500, "the rest was on its way"
    assert {name: record.completion_tokens for name, record in records.items()} == heard
    assert all(record.prompt_tokens for record in kept.records)
    assert not records["length"].estimated
