"""Requests with arrays, asked piece by piece on virtual time: their order, their ends and their books.

Only the connection to the backend is replaced. It answers each piece after a time that the test sets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from starlette.types import Message

from slotgate.gateway.api.endpoints import ENDPOINTS
from slotgate.gateway.api.request_reader import RequestReader
from slotgate.gateway.backends.state import LastHealth
from slotgate.gateway.forwarding.runtime import Runtime
from slotgate.gateway.handlers.generate import Generate
from slotgate.gateway.http.context import RequestContext, TenantIdentity, attach
from slotgate.gateway.http.errors import CapacityError, ClientGone, GatewayError
from slotgate.gateway.settings.loading import parse
from tests.support.virtual_time import run_virtual

Json = dict[str, Any]
PATH = "/v1/embeddings"


class Backend:
    """The backend's side of a connection. `seconds` is what a piece takes."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """The inputs in the order in which they came."""
        self.seconds: Callable[[str], float] = lambda _: 1.0
        self.status: Callable[[str], int] = lambda _: 200
        self.loading: list[Json] = []
        """Answers of a backend that loads its model, for the next requests."""
        self.numbers: Callable[[str], int] = lambda _: 1
        """The length of the vector for an input."""
        self.running = 0
        self.most_running = 0
        self.bodies: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = b"".join(request.extensions["body"])
        given = orjson.loads(body)["input"]
        [text] = [given] if isinstance(given, str) else given
        self.asked.append(text)
        self.bodies.append(body)
        if self.loading:
            return httpx.Response(503, content=_once(self.loading.pop()))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.seconds(text))
        finally:
            self.running -= 1
        status = self.status(text)
        error = {"error": {"code": status, "message": f"no {text}", "type": "invalid_request_error"}}
        return httpx.Response(
            status, content=_once(_vectors(text, self.numbers(text)) if status == 200 else error)
        )


async def _once(answer: Json) -> AsyncIterator[bytes]:
    yield orjson.dumps(answer)


def _vectors(text: str, numbers: int) -> Json:
    counts = {"prompt_tokens": 2, "total_tokens": 2}
    return {"model": "x", "usage": counts, "data": [{"embedding": [float(len(text))] * numbers, "index": 0}]}


class Client:
    """A request. `task` raises the error of the handler."""

    def __init__(self, context: RequestContext, task: asyncio.Task[None], left: asyncio.Event) -> None:
        self.context = context
        self.task = task
        self._left = left
        self.body = b""

    def leave(self) -> None:
        self._left.set()

    @property
    def answer(self) -> Json:
        answer: Json = orjson.loads(self.body)
        return answer


class Gateway:
    def __init__(self, slots: int, **sections: Any) -> None:  # noqa: ANN401
        backend = {"name": "gpu0", "url": "http://127.0.0.1:1", "models": ["m"], "slots": slots}
        self.settings = parse(
            {"server": {"port": 0}, "backend": [backend], "usage": {"store": "none"}, **sections}, {}
        )
        self.runtime = Runtime(self.settings)
        self.pool = self.runtime.fleet.backends["gpu0"].pool
        self.backend = Backend()
        gpu0 = self.runtime.fleet.backends["gpu0"]
        gpu0.transport = self.backend  # type: ignore[assignment]
        self.runtime.fleet._reroute()
        gpu0.observe(LastHealth.GOOD)
        self._reader = RequestReader(self.settings.server)

    def ask(self, texts: list[str] | str, tenant: str = "anonymous", **members: object) -> Client:
        """Send a request. Its tenant may choose its slot."""
        loop = asyncio.get_running_loop()
        context = RequestContext("id", loop.time(), TenantIdentity(tenant, allow_id_slot=True))
        scope: dict[str, Any] = {"type": "http", "headers": []}
        attach(scope, context)
        left, sent = asyncio.Event(), [orjson.dumps({"input": texts, **members})]

        async def receive() -> Message:
            if sent:
                return {"type": "http.request", "body": sent.pop(), "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            client.body += message.get("body", b"")

        [endpoint] = [each for each in ENDPOINTS if PATH in each.paths]
        handler = Generate(self.settings, self.runtime, endpoint, self._reader)
        client = Client(context, loop.create_task(handler(scope, receive, send)), left)
        return client


@asynccontextmanager
async def gateway(slots: int = 2, **sections: Any) -> AsyncIterator[Gateway]:  # noqa: ANN401
    """Run a gateway, and see at the end that nothing waits or runs, and that no slot is lost."""
    running = Gateway(slots, **sections)
    yield running
    await asyncio.sleep(0)
    scheduler = running.runtime.scheduler
    assert (scheduler.depth, scheduler.leases, running.backend.running) == (0, 0, 0)
    assert running.pool.free + len(running.pool.quarantine) == slots
    assert running.runtime.in_flight.answers == []
    assert running.runtime.bodies.held == 0
    assert running.runtime.buffers.drawn == 0
    running.runtime.queue.close()


def virtually(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await body()

    run_virtual(main())


def numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def test_the_pieces_use_the_slots_that_are_free_and_are_merged_in_order() -> None:
    async def body() -> None:
        async with gateway(slots=3) as running:
            running.backend.seconds = lambda text: 5.0 if text == "x0" else 1.0
            client = running.ask(numbered("x", 7))
            await client.task
            assert asyncio.get_running_loop().time() - client.context.began_at == 5.0
            assert running.backend.most_running == 3
            assert [entry["index"] for entry in client.answer["data"]] == list(range(7))
            assert client.answer["usage"] == {"prompt_tokens": 14, "total_tokens": 14}
            assert client.answer["model"] == "m"
            assert (client.context.prompt_tokens, client.context.partial) == (14, False)
            assert client.context.estimated is False

    virtually(body)


def test_requests_of_others_pass_between_the_pieces() -> None:
    async def body() -> None:
        async with gateway(slots=1) as running:
            array = running.ask(numbered("a", 6), "array")
            await asyncio.sleep(0.5)
            others = [running.ask(text, "other") for text in ("b0", "b1", "b2")]
            await asyncio.gather(array.task, *(other.task for other in others))
            assert running.backend.asked == ["a0", "b0", "b1", "a1", "b2", "a2", "a3", "a4", "a5"]

    virtually(body)


ENDINGS = ("left", "cancelled", "timed out", "overtaken")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_request_that_ends_early_ends_all_its_pieces_and_books_what_they_used(ending: str) -> None:
    async def body() -> None:
        async with gateway(slots=2, timeouts={"total_s": 3.0, "first_byte_s": 100.0}) as running:
            running.backend.seconds = lambda text: 1.0 if text in ("x0", "x1") else 1000.0
            client = running.ask(numbered("x", 9))
            await asyncio.sleep(2.0)
            assert running.backend.running == 2
            if ending == "left":
                client.leave()
            elif ending == "cancelled":
                assert running.runtime.in_flight.cancel("id", None) == 1
            elif ending == "overtaken":
                running.runtime.drain()
                running.runtime.cancel_running()
            with pytest.raises((ClientGone, GatewayError)) as raised:
                await client.task
            expected = {"left": None, "cancelled": "cancelled", "timed out": "total_timeout"}
            assert getattr(raised.value, "code", None) == expected.get(ending, "draining")
            assert running.backend.asked == numbered("x", 4)
            assert len(running.pool.quarantine) == 2
            ended_after = asyncio.get_running_loop().time() - client.context.began_at
            assert ended_after == (3.0 if ending == "timed out" else 2.0)
            assert client.context.partial is True
            assert client.context.estimated is True
            assert client.context.prompt_tokens > 4, "those that ran count as estimated"

    virtually(body)


@pytest.mark.parametrize("status", [400, 500])
def test_the_first_piece_that_fails_ends_the_others(status: int) -> None:
    async def body() -> None:
        async with gateway(slots=3) as running:
            running.backend.seconds = lambda text: {"x2": 2.0, "x3": 50.0, "x4": 0.5}.get(text, 1.0)
            running.backend.status = lambda text: status if text == "x2" else 200
            client = running.ask(numbered("x", 20))
            with pytest.raises(GatewayError) as raised:
                await client.task
            assert (raised.value.status, raised.value.message) == (status, "no x2")
            assert running.pool.free == 1
            assert client.context.prompt_tokens == 6

    virtually(body)


def test_a_piece_that_found_its_backend_loading_is_tried_again_alone() -> None:
    async def body() -> None:
        async with gateway(slots=2) as running:
            loading = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
            running.backend.loading = [loading]
            client = running.ask(numbered("x", 3))
            await asyncio.sleep(1.5)
            assert running.backend.asked == ["x0"]
            running.runtime.fleet.backends["gpu0"].observe(LastHealth.GOOD)
            await client.task
            assert sorted(running.backend.asked) == ["x0", "x0", "x1", "x2"]
            assert len(client.answer["data"]) == 3

    virtually(body)


@pytest.mark.parametrize("full", ["queue", "tenant"])
def test_the_first_piece_is_refused_as_any_request_is(full: str) -> None:
    async def body() -> None:
        tenant = {
            "name": "t",
            "key_hashes": ["0" * 64],
            **({"max_concurrent": 1} if full == "tenant" else {}),
        }
        admission = {"max_queue_per_tenant": 1} if full == "queue" else {}
        async with gateway(slots=1, tenant=[tenant], admission=admission) as running:
            before = [running.ask(text, "t") for text in ("a", "b")[: 2 if full == "queue" else 1]]
            await asyncio.sleep(0.1)
            with pytest.raises(CapacityError) as raised:
                await running.ask(numbered("x", 3), "t").task
            assert raised.value.code == {"queue": "queue_full", "tenant": "tenant_concurrency"}[full]
            await asyncio.gather(*(client.task for client in before))
            assert running.backend.asked == ["a", "b"][: len(before)]
            refused = running.runtime.scheduler.refused
            assert refused.total() == (1 if full == "queue" else 0), "that of the tenant is no ticket's"

    virtually(body)


def test_later_pieces_wait_for_a_place_that_a_sibling_leaves() -> None:
    async def body() -> None:
        async with gateway(slots=2, admission={"max_queue_per_tenant": 1, "max_queue": 1}) as running:
            busy = [running.ask(text) for text in ("a", "b")]
            await asyncio.sleep(0.1)
            client = running.ask(numbered("x", 5))
            await asyncio.gather(client.task, *(other.task for other in busy))
            assert running.backend.asked[2:] == numbered("x", 5)

    virtually(body)


def test_pieces_for_a_slot_that_the_client_chose_run_one_after_the_other() -> None:
    async def body() -> None:
        async with gateway(slots=3) as running:
            await running.ask(numbered("x", 4), id_slot=1).task
            assert running.backend.most_running == 1

    virtually(body)


def test_an_array_counts_as_one_request_of_its_tenant() -> None:
    async def body() -> None:
        tenant = {"name": "t", "key_hashes": ["0" * 64], "max_concurrent": 2, "requests_per_minute": 2}
        async with gateway(slots=4, tenant=[tenant]) as running:
            client = running.ask(numbered("x", 6), "t")
            await asyncio.sleep(0.5)
            assert running.backend.running == 2
            other = running.ask("y", "t")
            await asyncio.gather(client.task, other.task)
            requests = running.runtime.limiter.requests_of("t")
            assert requests is not None
            assert requests.remaining == 0

    virtually(body)


@pytest.mark.parametrize("begun", [False, True])
def test_the_body_gives_way_to_others_until_a_piece_has_been_sent(*, begun: bool) -> None:
    async def body() -> None:
        async with gateway(slots=2) as running:
            busy = [running.ask(text) for text in ("a", "b")[: 0 if begun else 2]]
            await asyncio.sleep(0.1)
            client = running.ask(numbered("x", 5))
            await asyncio.sleep(0.1)
            held = list(running.runtime.bodies._bodies)[-1]
            assert held.can_be_given_up is not begun
            if not begun:
                held.give_up()
                with pytest.raises(CapacityError):
                    await client.task
            await asyncio.gather(*(each.task for each in (*busy, *[client][: int(begun)])))

    virtually(body)


def test_a_request_that_has_begun_is_finished_while_the_gateway_drains() -> None:
    async def body() -> None:
        async with gateway(slots=1) as running:
            client = running.ask(numbered("x", 3))
            await asyncio.sleep(0.5)
            waiting = running.ask(numbered("y", 3))
            await asyncio.sleep(0.1)
            running.runtime.drain()
            with pytest.raises(CapacityError) as raised:
                await waiting.task
            assert raised.value.code == "draining"
            await client.task
            assert running.backend.asked == numbered("x", 3)

    virtually(body)


BUFFERS = {"stream_buffer_bytes": 65536, "stream_buffers_total_bytes": 262_144}
PART = 25_000
"""The numbers of a vector whose part takes a little more than 100 kB."""


def test_a_request_whose_parts_fill_the_buffers_ends_with_an_error_that_says_so() -> None:
    async def body() -> None:
        async with gateway(slots=1, streaming=BUFFERS) as running:
            running.backend.numbers = lambda _: PART
            client = running.ask(numbered("x", 9))
            with pytest.raises(CapacityError) as raised:
                await client.task
            assert (raised.value.status, raised.value.code) == (503, "buffers_full")
            assert running.backend.asked == numbered("x", 4), "the fourth part is over the budget"
            assert client.context.prompt_tokens == 8
            assert client.context.partial is True

    virtually(body)


@pytest.mark.parametrize("ending", ["finished", "left", "failed"])
def test_the_parts_are_in_the_budget_until_the_request_ends(ending: str) -> None:
    async def body() -> None:
        async with gateway(slots=1, streaming=BUFFERS) as running:
            running.backend.numbers = lambda _: PART
            running.backend.status = lambda text: 500 if (text, ending) == ("x2", "failed") else 200
            client = running.ask(numbered("x", 3))
            await asyncio.sleep(2.5)
            assert running.runtime.buffers.drawn > 100_000
            if ending == "left":
                client.leave()
            await asyncio.wait([client.task])
            assert (client.task.exception() is None) == (ending == "finished")

    virtually(body)


def test_of_the_tenant_that_keeps_most_the_largest_answer_is_ended() -> None:
    async def body() -> None:
        async with gateway(slots=3, streaming=BUFFERS) as running:
            running.backend.numbers = lambda text: 2 * PART if text[0] == "b" else PART // 2
            lone = running.ask(numbered("c", 3), "lone", id_slot=0)
            small = running.ask(numbered("a", 2), "heavy", id_slot=1)
            large = running.ask(numbered("b", 9), "heavy", id_slot=2)
            with pytest.raises(CapacityError) as raised:
                await large.task
            assert raised.value.code == "buffers_full"
            await asyncio.gather(lone.task, small.task)
            assert [len(client.answer["data"]) for client in (lone, small)] == [3, 2]

    virtually(body)
