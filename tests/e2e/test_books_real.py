"""The books beside llama-server's own counters, over a run of mixed requests.

llama-server counts the prompt tokens that it processed, without cached ones (`llamacpp:prompt_tokens_total`),
and the tokens of the answers that it finished (`llamacpp:tokens_predicted_total`). The records of finished
answers must add up to these counters, but for what the cut requests had in flight. Two deviations are known:

* llama-server processes the prompt of several choices once, and counts it once for each choice.
* A whole answer to several prompts on `/v1/completions` states the tokens of the first prompt only. The
  prompts of such a request are estimated by their size.

`SLOTGATE_MIXED_REQUESTS` sets another number of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from slotgate.gateway.usage import UsageLedger, UsageRecord, UsageRecorder
from tests.support.client import RawClient, request_bytes
from tests.support.fixtures import RunLlama
from tests.support.gateway import Gateway, running_gateway, settings_for
from tests.support.llama import RealLlama
from tests.support.virtual_gateway import KeptRecords

pytestmark = pytest.mark.anyio

REQUESTS = int(os.environ.get("SLOTGATE_MIXED_REQUESTS", "120"))
AT_ONCE = 12
SLOTS = 4
WORDS = ["the", "time", "of", "a", "year", "people", "have", "new", "hand", "every", "place", "work", "days"]
ENDINGS = ("stays",) * 17 + ("leaves", "leaves", "is cancelled")
ESTIMATE_OFF = 0.4
"""Largest relative error of the estimated prompts, all together."""


@dataclass(frozen=True, slots=True)
class MixedRequest:
    path: str
    body: dict[str, Any]
    ending: str

    @property
    def choices(self) -> int:
        return int(self.body.get("n", 1))

    @property
    def most_tokens(self) -> int:
        """The most tokens that it can have in flight."""
        prompt = self.body.get("prompt")
        parts = len(prompt) if isinstance(prompt, list) else self.choices
        limits = ("max_tokens", "n_predict", "max_output_tokens")
        return parts * max(int(self.body.get(name, 0)) for name in limits)


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


async def test_records_add_up_to_the_counters_of_llama_server(run_llama: RunLlama, tiny_model: Path) -> None:
    llama = run_llama(RealLlama(tiny_model, slots=SLOTS))
    dice, kept = random.Random(5), KeptRecords()
    requests = {f"r{number}": mixed_request(dice) for number in range(REQUESTS)}
    patience = {name: dice.uniform(0.0, 0.2) for name in requests}
    usage = UsageLedger(None, cast("UsageRecorder", kept))
    admission = {"max_queue": AT_ONCE}
    async with running_gateway(settings_for(llama.url, admission=admission), usage=usage) as gateway:
        gate = asyncio.Semaphore(AT_ONCE)

        async def gated(name: str) -> None:
            async with gate:
                await play(gateway, requests[name], name, patience[name])

        await asyncio.gather(*map(gated, requests))
        pool = gateway.fleet.backends["gpu0"].pool
        await gateway.until(lambda: pool.free == SLOTS, within=30)
        counted = await llama.metrics()
    prompt, completion = counted["prompt_tokens_total"], counted["tokens_predicted_total"]
    finished = [record for record in kept.records if not record.partial]
    cut = [record for record in kept.records if record.partial]
    exact = [record for record in finished if not _prompts_estimated(requests[record.request_id])]
    estimated = [record for record in finished if _prompts_estimated(requests[record.request_id])]
    print(f"{len(finished)} finished, {len(cut)} cut, {len(requests) - len(kept.records)} never begun")
    print(f"prompt tokens: llama-server {prompt:.0f}, records {_prompt(exact, requests):.0f} exact")
    print(f"  {_prompt(estimated, requests):.0f} estimated, {_prompt(cut, requests):.0f} of cut requests")
    print(f"completion tokens: llama-server {completion:.0f}, records {_completion(finished)}")
    print(f"  {_completion(cut)} of cut requests")
    assert Counter(record.request_id for record in kept.records).most_common(1)[0][1] == 1
    in_flight = sum(requests[record.request_id].most_tokens for record in cut)
    assert 0 <= completion - _completion(finished) <= in_flight
    off = ESTIMATE_OFF * (_prompt(estimated, requests) + _prompt(cut, requests))
    least, most = _prompt([*exact, *estimated], requests) - off, _prompt(kept.records, requests) + off
    assert least <= prompt <= most


def _prompts_estimated(request: MixedRequest) -> bool:
    whole = not request.body["stream"]
    return whole and request.path == "/v1/completions" and isinstance(request.body["prompt"], list)


def _prompt(records: Iterable[UsageRecord], requests: dict[str, MixedRequest]) -> float:
    """Return the processed prompt tokens, as llama-server counts them."""
    return sum((r.prompt_tokens - r.cached_tokens) * requests[r.request_id].choices for r in records)


def _completion(records: Iterable[UsageRecord]) -> int:
    return sum(record.completion_tokens for record in records)
