"""No client waits in silence: keep-alives come in the queue, before headers, during prefill and in pauses."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from tests.e2e.test_endings import WAYS
from tests.support.client import Frame, read_stream
from tests.support.endpoints import Way
from tests.support.gateway import CHAT, Gateway, chat, data_of, running_gateway, settings_for, text_of
from tests.support.notation import DONE, END, PING, STOP, USE, H, T, answer, chunked, error_body
from tests.support.script import Fin, Gate, Script, Sleep, Stall, Step, Write
from tests.support.scripted import ScriptedUpstream

pytestmark = pytest.mark.anyio

INTERVAL_S = 0.05
SILENCE_S = 0.2
KEEPALIVE = b": keep-alive\n\n"
ROLE = T("").replace(b'"content":""', b'"role":"assistant","content":null')
ANSWER: list[Step] = [Write(chunked(ROLE, T("a"), T("b"), STOP, USE, DONE) + END), Fin()]
PINGS: list[Step] = [step for _ in range(5) for step in (Sleep(SILENCE_S / 5), Write(chunked(PING)))]

SILENCES: dict[str, list[Step]] = {
    "before headers": [Sleep(SILENCE_S), Write(H), *ANSWER],
    "after headers": [Write(H), Sleep(SILENCE_S), *ANSWER],
    "during prefill, with pings": [Write(H), *PINGS, *ANSWER],
    "behind a progress chunk": [
        Write(H + chunked(T("").replace(b"]}\n", b'],"prompt_progress":{"total":9}}\n'))),
        Sleep(SILENCE_S),
        *ANSWER,
    ],
}
"""Scripts that are silent before the first output."""


def streaming(form: str, interval_s: float = INTERVAL_S) -> dict[str, Any]:
    return {"keepalive": form, "keepalive_interval_s": interval_s}


def usage_asked(**options: bool) -> dict[str, Any]:
    return chat(stream_options={"include_usage": True, **options})


def ours(frames: Sequence[Frame]) -> list[bytes]:
    """Return the frames before the first output: comments, and chunks without text."""
    waiting = itertools.takewhile(lambda frame: not text_of([frame]), frames)
    return [frame.data for frame in waiting]


async def frames_of(script: Script, form: str, *headers: bytes, **members: object) -> list[Frame]:
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, running_gateway(settings_for(fu.url, streaming=streaming(form))) as gateway:
        return await read_stream(gateway.url, CHAT, usage_asked() | members, headers)


@asynccontextmanager
async def all_slots_taken(form: str) -> AsyncIterator[tuple[Gateway, asyncio.Event]]:
    """Run a gateway whose only slot is taken until the event is set.

    After that every request gets `ANSWER`.
    """
    gate = Gate()
    first: Script = [Write(H + chunked(T("first"))), gate, *ANSWER]
    scripts = itertools.chain([first], itertools.repeat([Write(H), *ANSWER]))
    fu = ScriptedUpstream(scripts={CHAT: lambda _: next(scripts)})
    fu.llama.total_slots = 1
    async with fu, running_gateway(settings_for(fu.url, streaming=streaming(form))) as gateway:
        running = asyncio.create_task(read_stream(gateway.url, CHAT, chat(), [b"x-slotgate-keepalive: off"]))
        await fu.generation()
        try:
            yield gateway, gate.event
        finally:
            gate.event.set()
            await running


async def queued_frames(form: str, **members: object) -> list[Frame]:
    async with all_slots_taken(form) as (gateway, free):
        waiting = asyncio.create_task(read_stream(gateway.url, CHAT, usage_asked() | members))
        await gateway.until(lambda: gateway.scheduler.depth == 1)
        await asyncio.sleep(SILENCE_S)
        free.set()
        return await waiting


# Comments


@pytest.mark.parametrize("silence", [name for name in SILENCES if "progress" not in name])
async def test_in_comment_form_comments_come_and_no_chunk_before_the_first_real_event(silence: str) -> None:
    frames = await frames_of(SILENCES[silence], "comment")
    kinds = [frame.data[:1] for frame in frames]
    comments = list(itertools.takewhile(lambda kind: kind == b":", kinds))
    assert len(comments) >= 2
    assert frames[0].data == KEEPALIVE
    assert b":" not in kinds[len(comments) :]


async def test_a_queued_client_gets_comments_in_comment_form() -> None:
    frames = [frame.data for frame in await queued_frames("comment")]
    assert frames[:2] == [KEEPALIVE] * 2
    assert text_of(await queued_frames("comment")) == "ab"


async def test_comments_come_in_a_later_silence_too() -> None:
    script: Script = [Write(H + chunked(ROLE, T("a"))), Sleep(SILENCE_S), *ANSWER]
    frames = [frame.data for frame in await frames_of(script, "comment")]
    assert frames.count(KEEPALIVE) >= 2
    assert not frames[0].startswith(b":")


async def test_the_backends_own_pings_pass_in_comment_form_only() -> None:
    script: Script = [Write(H + chunked(T("a"), PING, b": theirs\n\n", T("b"), STOP, DONE) + END), Fin()]
    comments = {
        form: [frame.data for frame in await frames_of(script, form) if frame.data.startswith(b":")]
        for form in ("comment", "chunk", "off")
    }
    assert comments == {"comment": [PING, b": theirs\n\n"], "chunk": [], "off": []}


@pytest.mark.slow
async def test_no_silence_is_longer_than_an_interval() -> None:
    """Silences come before headers, after them, and in comment form between two tokens."""
    long = Sleep(0.8)
    script: list[Step] = [long, Write(H), long, Write(chunked(T("a"))), long, *ANSWER]
    for form, phases in ("comment", script), ("chunk", script[:4] + ANSWER):
        frames = await frames_of(phases, form)
        gaps = [after.at_ns - before.at_ns for before, after in itertools.pairwise(frames)]
        assert max(gaps) / 1e9 < 0.5


# Chunks


@pytest.mark.parametrize("silence", [*SILENCES, "queued"])
async def test_in_chunk_form_the_role_comes_first_and_once_then_chunks_without_output(silence: str) -> None:
    frames = (
        await queued_frames("chunk") if silence == "queued" else await frames_of(SILENCES[silence], "chunk")
    )
    waiting = [orjson.loads(frame.removeprefix(b"data: ")) for frame in ours(frames)]
    if silence != "behind a progress chunk":
        assert waiting[0]["choices"] == [
            {"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}
        ]
    empty = [chunk for chunk in waiting if chunk["choices"][0]["delta"] == {}]
    assert len(empty) >= 2
    assert empty[0]["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
    assert not any("usage" in chunk or "timings" in chunk for chunk in empty)
    chunks = data_of(frames)
    assert sum("role" in chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]) == 1
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert not any(frame.data.startswith(b":") for frame in frames)


async def test_in_chunk_form_nothing_comes_after_the_first_output() -> None:
    script: Script = [Write(H), Sleep(SILENCE_S), Write(chunked(ROLE, T("a"))), Sleep(SILENCE_S), *ANSWER]
    frames = await frames_of(script, "chunk")
    assert len(ours(frames)) >= 3
    assert len(frames) - len(ours(frames)) == len([T("a"), ROLE, T("a"), T("b"), STOP, USE, DONE])


@pytest.mark.parametrize(
    "first", ['"reasoning_content":"hm"', '"tool_calls":[{"index":0,"id":"1"}]', '"refusal":"no"']
)
async def test_any_kind_of_output_ends_the_chunks(first: str) -> None:
    said = T("x").replace(b'"content":"x"', first.encode())
    script: Script = [Write(H + chunked(said)), Sleep(SILENCE_S), Write(chunked(STOP, DONE) + END), Fin()]
    frames = await frames_of(script, "chunk")
    assert len(frames) == len([said, STOP, DONE])


async def test_the_role_of_a_second_choice_is_kept() -> None:
    """The gateway has sent only the role of the first choice."""
    second = ROLE.replace(b'"index":0', b'"index":1')
    script: Script = [Write(H), Sleep(SILENCE_S), Write(chunked(ROLE, second, STOP, DONE) + END), Fin()]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, running_gateway(settings_for(fu.url, streaming=streaming("chunk"))) as gateway:
        chunks = data_of(await read_stream(gateway.url, CHAT, chat(n=2)))
    assert [c["choices"][0]["index"] for c in chunks if "role" in c["choices"][0]["delta"]] == [0, 1]


# -- events that the client asked for


def counted(text: str, predicted: int) -> bytes:
    """Return a delta that states its counts, as with `timings_per_token`."""
    timings = orjson.dumps({"cache_n": 1, "prompt_n": 2, "predicted_n": predicted})
    return T(text).replace(b"]}\n", b'],"timings":' + timings + b"}\n")


async def test_running_usage_is_zero_while_waiting_and_counts_then() -> None:
    script: Script = [
        Write(H),
        Sleep(SILENCE_S),
        Write(chunked(ROLE, counted("a", 1), counted("b", 2), STOP, USE, DONE) + END),
        Fin(),
    ]
    fu = ScriptedUpstream(scripts={CHAT: script})
    async with fu, running_gateway(settings_for(fu.url, streaming=streaming("chunk"))) as gateway:
        frames = await read_stream(gateway.url, CHAT, usage_asked(continuous_usage_stats=True))
        assert fu.generations[0].json()["timings_per_token"] is True
    role, *chunks = data_of(frames)
    assert "usage" not in role
    zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    waiting = [chunk for chunk in chunks if chunk["usage"] == zero]
    assert len(waiting) >= 2
    said = chunks[len(waiting) :]
    assert [chunk["usage"]["total_tokens"] for chunk in said] == [4, 5, 5, 5]
    assert [chunk["usage"]["prompt_tokens"] for chunk in said] == [3, 3, 3, 3]
    assert not any("timings" in chunk for chunk in chunks)


async def test_running_usage_in_comment_form_is_in_the_chunks_alone() -> None:
    script: Script = [Write(H), Sleep(SILENCE_S), *ANSWER]
    options = {"continuous_usage_stats": True, "include_usage": True}
    frames = await frames_of(script, "comment", stream_options=options)
    assert [frame.data for frame in frames[:2]] == [KEEPALIVE] * 2
    assert ["usage" in chunk for chunk in data_of(frames)] == [False, True, True, True, True]


async def test_timings_are_those_of_the_last_chunk_and_none_before_the_first() -> None:
    progress = T("").replace(b"]}\n", b'],"timings":{"prompt_n":7},"prompt_progress":{"total":9}}\n')
    script: Script = [Write(H), Sleep(SILENCE_S), Write(chunked(progress)), Sleep(SILENCE_S), *ANSWER]
    frames = await frames_of(script, "chunk", timings_per_token=True, return_progress=True)
    timings = [chunk.get("timings") for chunk in data_of(frames) if chunk["choices"][:1] != []]
    waiting = [value for value in timings[1:-4] if value is None]
    later = timings[1 + len(waiting) : -3]
    assert len(waiting) >= 2
    assert len(later) >= 3
    assert all(value == {"prompt_n": 7} for value in later)


# -- streams without keep-alives


@pytest.mark.slow
async def test_scenario_047_a_half_written_frame_is_never_broken_up() -> None:
    half = len(T("a")) // 2
    cut: list[Step] = [
        Write(H + chunked(T("a")[:half])),
        Sleep(SILENCE_S),
        Write(chunked(T("a")[half:] + T("b")[:-1])),
        Sleep(SILENCE_S),
        Write(chunked(b"\n", STOP, DONE) + END),
        Fin(),
    ]
    for form in ("comment", "chunk"):
        frames = await frames_of(cut, form)
        assert text_of(frames) == "ab"
        assert len(frames) > len([T("a"), T("b"), STOP, DONE])


@pytest.mark.slow
async def test_a_frame_too_big_to_be_held_is_not_broken_up_either() -> None:
    """The frame leaves in pieces as it comes. A comment between two of them would become part of it."""
    big = T("x" * 5 * 1024 * 1024)
    half = len(big) - 100
    script: Script = [
        Write(H + chunked(big[:half])),
        Sleep(SILENCE_S),
        Write(chunked(big[half:])),
        Sleep(SILENCE_S),
        *ANSWER,
    ]
    frames = [frame.data for frame in await frames_of(script, "comment")]
    [position] = [number for number, frame in enumerate(frames) if b'"content":"xxx' in frame]
    assert orjson.loads(frames[position][6:])["choices"] == orjson.loads(big[6:])["choices"]
    assert frames[position + 1] == KEEPALIVE  # a comment may also come before it, on a busy machine


@pytest.mark.parametrize("form", ["comment", "chunk"])
async def test_answer_usage_and_end_are_the_same_with_and_without_keepalives(form: str) -> None:
    script: Script = [Write(H), Sleep(SILENCE_S), *ANSWER]
    plain, kept = await frames_of(script, "off"), await frames_of(script, form)
    assert len(kept) > len(plain)
    assert kept[-1].data == plain[-1].data == DONE
    same = {"id": "", "created": 0}
    tail = len([T("a"), T("b"), STOP, USE])
    assert [c | same for c in data_of(kept)[-tail:]] == [c | same for c in data_of(plain)[-tail:]]


@pytest.mark.slow
async def test_off_is_silence() -> None:
    for silence in SILENCES.values():
        frames = await frames_of(silence, "off")
        assert not any(frame.data.startswith(b":") for frame in frames)
        assert not any(chunk["choices"][0]["delta"] == {} for chunk in data_of(frames)[:2])


@pytest.mark.parametrize("way", [way for way, stream in WAYS if not stream], ids=repr)
async def test_scenario_061_an_answer_that_is_no_stream_is_one_document_with_its_own_status(way: Way) -> None:
    """Nothing can be sent before the status is known. A stream is the remedy for impatient proxies."""
    script: Script = [
        Sleep(INTERVAL_S * 2),
        Write(answer(400, error_body(400, "no", "invalid_request_error"))),
    ]
    fu = ScriptedUpstream(scripts={way.upstream: script})
    async with fu, running_gateway(settings_for(fu.url, streaming=streaming("chunk"))) as gateway:
        got = await way.ask(gateway.url, b"x-slotgate-keepalive: chunk")
    assert (got.status, got.json["error"]["message"]) == (400, "no")


# -- options that decide


@pytest.mark.parametrize(
    ("configured", "asked", "form"),
    [
        ("comment", b"chunk", "chunk"),
        ("comment", b"off", "off"),
        ("chunk", b"comment", "comment"),
        ("off", b" CHUNK ", "chunk"),
        ("chunk", b"both", "chunk"),
        ("comment", b"", "comment"),
    ],
)
async def test_the_header_decides_for_its_request(configured: str, asked: bytes, form: str) -> None:
    script = SILENCES["before headers"]
    first = ours(await frames_of(script, configured, b"x-slotgate-keepalive: " + asked))[0]
    assert first[:1] == {"comment": b":", "chunk": b"d", "off": b"d"}[form]
    assert (b'"delta":{"role"' in first) == (form != "comment")


async def test_a_client_that_leaves_while_it_hears_keep_alives_leaves_the_queue() -> None:
    async with all_slots_taken("comment") as (gateway, _), await gateway.client() as client:
        granted = gateway.scheduler.granted
        await client.post(CHAT, chat())
        client.close()
        await gateway.until(lambda: gateway.scheduler.depth == 0, within=0.5)
        assert gateway.scheduler.granted == granted


async def test_keep_alives_do_not_put_off_a_limit() -> None:
    fu = ScriptedUpstream(scripts={CHAT: [Write(H), Stall()]})
    tables = {"streaming": streaming("chunk"), "timeouts": {"first_byte_s": SILENCE_S}}
    async with fu, running_gateway(settings_for(fu.url, **tables)) as gateway:
        frames = await read_stream(gateway.url, CHAT, chat())
    assert data_of(frames)[-1]["error"]["code"] == "first_byte_timeout"
