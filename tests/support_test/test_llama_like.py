"""`LlamaLike` has slots, defers silently, and answers in llama-server's shapes."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import orjson
import pytest

from tests.support.client import RawClient, read_stream
from tests.support.connection import ReceivedRequest, ScriptedConnection
from tests.support.http1 import Message, parse_head
from tests.support.llama_answers import GENERATING, SPEECH
from tests.support.llama_like import LlamaLike
from tests.support.notation import DONE, H, answer
from tests.support.script import Gate, Stall, Write
from tests.support.scripted import ScriptedUpstream
from tests.support.sse import data_of, text_of
from tests.support.virtual_time import run_virtual

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


async def get(fu: ScriptedUpstream, path: str) -> Any:  # noqa: ANN401 (a list or an object)
    async with await RawClient.connect(fu.url) as client:
        await client.request("GET", path)
        return client.status, orjson.loads(await client.body())


async def busy(fu: ScriptedUpstream) -> int:
    _, slots = await get(fu, "/slots")
    return sum(slot["is_processing"] for slot in slots)


async def test_a_chat_stream_has_the_shape_of_the_real_one() -> None:
    async with ScriptedUpstream() as fu:
        frames = [frame.data for frame in await read_stream(fu.url, CHAT, {**BODY, "max_tokens": 3})]
        assert [text_of(frame) for frame in frames] == [None, " w0", " w1", " w2", None, None]
        finish, done = frames[-2:]
        assert done == DONE
        assert {"timings", "choices"} <= orjson.loads(data_of(finish)).keys()
        assert fu.requests[0].finished


async def test_asking_for_usage_moves_the_timings() -> None:
    body = {**BODY, "max_tokens": 2, "stream_options": {"include_usage": True}}
    async with ScriptedUpstream() as fu:
        frames = await read_stream(fu.url, CHAT, body)
        finish, usage = (orjson.loads(data_of(frame.data)) for frame in frames[-3:-1])
        assert "timings" not in finish
        assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 2)
        assert usage["timings"]["predicted_n"] == 2


@pytest.mark.parametrize("path", sorted(GENERATING - SPEECH))
async def test_every_path_that_generates_answers_whole_and_in_a_stream(path: str) -> None:
    body = {**BODY, "prompt": "hi", "input": "hi", "documents": ["a"], "query": "a"}
    async with ScriptedUpstream() as fu, await RawClient.connect(fu.url) as client:
        await client.post(path, {**body, "stream": False})
        assert (client.status, bool(await client.body())) == (200, True)
        await client.post(path, body)
        assert (client.status, bool(await client.body())) == (200, True)
        assert fu.llama.max_running == 1


async def test_more_requests_than_slots_are_deferred_in_silence() -> None:
    gates = [Gate() for _ in range(3)]
    async with ScriptedUpstream(llama=LlamaLike(slots=2)) as fu:
        fu.responder = lambda request: [gates[fu.generations.index(request)], Write(answer(200, {}))]
        clients = [await RawClient.connect(fu.url) for _ in gates]
        answers = []
        for number, client in enumerate(clients):
            answers.append(asyncio.ensure_future(client.post(CHAT, BODY)))
            await fu.generation(number)
        assert (fu.llama.running, fu.llama.deferred, await busy(fu)) == (2, 1, 2)
        for gate in gates:
            gate.event.set()
        await asyncio.gather(*answers)
        assert (fu.llama.running, fu.llama.max_running) == (0, 2)
        for client in clients:
            client.close()


async def test_a_deferred_request_whose_client_leaves_is_dropped() -> None:
    async with ScriptedUpstream(lambda _: [Write(H), Stall()], llama=LlamaLike(slots=1)) as fu:
        running = await RawClient.connect(fu.url)
        await running.post(CHAT, BODY)
        deferred = await RawClient.connect(fu.url)
        posting = asyncio.ensure_future(deferred.post(CHAT, BODY))
        await fu.until(lambda: fu.llama.deferred)
        deferred.close()
        await fu.connections[1].closed()
        running.close()
        await fu.all_closed()
        assert (fu.llama.running, fu.llama.max_running, fu.llama.deferred) == (0, 1, 1)
        with pytest.raises(ConnectionError):
            await posting


async def test_growing_the_slots_starts_what_was_deferred() -> None:
    async with ScriptedUpstream(llama=LlamaLike(slots=1)) as fu:
        fu.llama.foreign = 1
        async with await RawClient.connect(fu.url) as client:
            posting = asyncio.ensure_future(client.post(CHAT, BODY))
            await fu.until(lambda: fu.llama.deferred)
            fu.llama.total_slots = 2
            fu.llama.grant()
            assert (await posting).start_line == b"HTTP/1.1 200 OK"


async def test_several_choices_take_several_slots() -> None:
    gate = Gate()
    async with (
        ScriptedUpstream(lambda _: [gate, Write(answer(200, {}))]) as fu,
        await RawClient.connect(fu.url) as client,
    ):
        posting = asyncio.ensure_future(client.post(CHAT, {**BODY, "n": 3}))
        await fu.until(lambda: fu.llama.running)
        assert await busy(fu) == 3
        gate.event.set()
        await posting


async def test_abandoned_work_keeps_its_slot_until_it_is_ended() -> None:
    async with ScriptedUpstream(lambda _: [Write(H), Stall()], llama=LlamaLike(linger_s=math.inf)) as fu:
        async with await RawClient.connect(fu.url) as client:
            await client.post(CHAT, BODY)
        await fu.connections[0].closed()
        assert await busy(fu) == 1
        fu.llama.finish_abandoned()
        assert await busy(fu) == 0


def test_asking_for_slots_keeps_abandoned_work_alive() -> None:
    async def main() -> None:
        fu = ScriptedUpstream(llama=LlamaLike(linger_s=1.0))
        connection = ScriptedConnection(fu, reading=True)

        def request(path: str) -> ReceivedRequest:
            head = parse_head(b"POST %b HTTP/1.1" % path.encode())
            return ReceivedRequest(Message(head, b"{}", b""), connection, 0, 0)

        async def generate() -> None:
            async with fu.llama.slot(request(CHAT)):
                await asyncio.Event().wait()

        generating = asyncio.create_task(generate())
        await fu.until(lambda: fu.llama.running)
        generating.cancel()
        for _ in range(20):
            await asyncio.sleep(0.9)
            assert fu.llama.control(request("/slots"))
            assert fu.llama.busy == 1
        await fu.until(lambda: not fu.llama.busy, within=1.1)

    run_virtual(main())


async def test_the_control_plane_says_what_the_test_sets() -> None:
    async with ScriptedUpstream(llama=LlamaLike(slots=3, n_ctx=512, model="/m.gguf")) as fu:
        assert await get(fu, "/health") == (200, {"status": "ok"})
        _, props = await get(fu, "/props")
        settings = props["default_generation_settings"]
        assert (props["total_slots"], settings["n_ctx"], props["model_path"]) == (3, 512, "/m.gguf")
        _, models = await get(fu, "/v1/models")
        assert [entry["id"] for entry in models["data"]] == ["/m.gguf"]
        fu.llama.loading = True
        status, body = await get(fu, "/health")
        assert (status, body["error"]["message"]) == (503, "Loading model")
        assert (await get(fu, CHAT))[0] == 503
        assert not [request for request in fu.generations if request.path != CHAT]


async def test_a_path_can_hang_or_have_a_script() -> None:
    async with ScriptedUpstream(scripts={"/health": [Write(answer(500, {}))]}) as fu:
        assert (await get(fu, "/health"))[0] == 500
        fu.llama.hanging.add("/props")
        async with await RawClient.connect(fu.url) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.request("GET", "/props"), 0.05)
