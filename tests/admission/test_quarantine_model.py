"""The quarantine rule against a model of llama-server, on random schedules and in the cases that are hard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings, strategies

from slotgate.admission.quarantine import CERTAIN_S, EARLY_S, SETTLE_S, SPACING_S
from tests.admission.llama_model import LlamaModel, ModelledConnection, ModelledWork
from tests.admission.prober import Prober
from tests.support.virtual_time import run_virtual

LONG_PREFILL = ModelledWork(prefill_s=17.0)


@dataclass(frozen=True, slots=True)
class ClientVisit:
    """A client's request: the pause before it, its work, and the time until the client leaves."""

    after_s: float
    work: ModelledWork
    leaves_after_s: float | None


@dataclass(frozen=True, slots=True)
class BackendTraits:
    slots: int
    batch_s: float
    latency_s: float
    answers_after: tuple[float, ...]
    """Parts of a batch."""
    unreadable: tuple[bool, ...]


few = strategies.integers(1, 5)
worlds = strategies.builds(
    BackendTraits,
    slots=strategies.integers(1, 4),
    batch_s=strategies.sampled_from([0.05, 0.4]),
    latency_s=strategies.sampled_from([0.0, 0.004]),
    answers_after=strategies.lists(strategies.floats(0, 1), min_size=1, max_size=5).map(tuple),
    unreadable=strategies.lists(strategies.sampled_from([False, False, True]), max_size=4).map(tuple),
)
works = strategies.builds(
    ModelledWork,
    tasks=strategies.sampled_from([1, 1, 1, 1, 2, 3, 9]),
    stream=strategies.booleans(),
    body_mib=strategies.sampled_from([0, 0, 1, 8, 20]),
    parsing=strategies.floats(0, 1),
    prefill_s=strategies.sampled_from([0.0, 0.3, 2.0, 6.0]),
    tokens=strategies.sampled_from([0, 3, 30]),
    gap_s=strategies.sampled_from([0.02, 0.3]),
)
visits = strategies.builds(
    ClientVisit,
    after_s=strategies.sampled_from([0.0, 0.0, 0.05, 0.5, 1.5]),
    work=works,
    leaves_after_s=strategies.none() | strategies.sampled_from([0.0, 0.01, 0.1, 0.45, 1.0, 2.0, 5.0]),
)


@pytest.mark.slow
@given(world=worlds, schedule=strategies.lists(visits, min_size=1, max_size=14))
@settings(max_examples=200, deadline=None)
def test_the_server_never_sees_more_work_than_slots_and_no_slot_is_lost(
    world: BackendTraits, schedule: list[ClientVisit]
) -> None:
    async def main() -> None:
        llama = LlamaModel(world.slots, batch_s=world.batch_s)
        prober = Prober(
            llama,
            latency_s=world.latency_s,
            answers_after_s=[world.batch_s * part for part in world.answers_after],
            unreadable=[*world.unreadable, False],
        )
        requests = []
        for visit in schedule:
            await asyncio.sleep(visit.after_s)
            requests.append(asyncio.create_task(prober.request(visit.work, visit.leaves_after_s)))
        await asyncio.gather(*requests)
        await prober.end()
        assert llama.deferred == 0
        assert llama.kept_alive_s <= 2.5

    run_virtual(main())


# -- asking keeps work alive


async def closed_at_once(llama: LlamaModel, work: ModelledWork) -> float:
    """Return the seconds for which work goes on after its client has left."""
    connection = ModelledConnection(lambda: None, lambda: None)
    connection.close()
    began = asyncio.get_running_loop().time()
    await llama.serve(work, connection)
    return asyncio.get_running_loop().time() - began


@pytest.mark.parametrize(
    ("every_s", "takes_s"),
    [(0.2, 17.0), (0.9, 17.0), (1.3, 1.0), (SPACING_S, 1.0), (None, 1.0)],
)
def test_frequent_probes_keep_an_abandoned_prefill_alive_in_the_model(
    every_s: float | None, takes_s: float
) -> None:
    """The real llama-server was measured to do this. A rule that probes so often would fail here."""

    async def main() -> None:
        llama = LlamaModel(1)

        async def ask() -> None:
            while every_s is not None:
                await asyncio.sleep(every_s)
                await llama.answer_slots(0.0)

        asking = asyncio.create_task(ask())
        took = await closed_at_once(llama, ModelledWork(prefill_s=17.0, tokens=0))
        asking.cancel()
        assert took == pytest.approx(takes_s, abs=0.1)
        assert (llama.kept_alive_s > 2.5) == (takes_s > 2.5)

    run_virtual(main())


def with_llama(slots: int, body: Callable[[LlamaModel, Prober], Awaitable[object]]) -> None:
    """Run a test's body.

    At its end all slots must be back, and no work may have been deferred or kept alive.
    """

    async def main() -> None:
        llama = LlamaModel(slots)
        prober = Prober(llama)
        await body(llama, prober)
        await prober.end()
        assert llama.deferred == 0
        assert llama.kept_alive_s <= 2.5

    run_virtual(main())


def test_an_abandoned_prefill_ends_and_its_slot_serves_again_within_two_seconds_and_a_half() -> None:
    async def body(llama: LlamaModel, prober: Prober) -> None:
        await prober.request(LONG_PREFILL, leaves_after_s=3.0)
        left_at = prober.loop.time()
        served_at = await prober.request(ModelledWork())
        assert served_at - left_at == pytest.approx(SPACING_S + SETTLE_S)

    with_llama(1, body)


def test_a_cancelled_decode_costs_its_slot_a_moment_only() -> None:
    async def body(llama: LlamaModel, prober: Prober) -> None:
        await prober.request(ModelledWork(prefill_s=0.5, tokens=1000), leaves_after_s=3.0)
        left_at = prober.loop.time()
        served_at = await prober.request(ModelledWork())
        assert served_at - left_at == pytest.approx(EARLY_S + SETTLE_S)

    with_llama(1, body)


def test_a_slow_decode_is_probed_again_only_after_the_spacing() -> None:
    """It had not written within the first tenth of a second."""

    async def body(llama: LlamaModel, prober: Prober) -> None:
        await prober.request(ModelledWork(prefill_s=0.0, tokens=1000, gap_s=0.4), leaves_after_s=0.5)
        await prober.request(ModelledWork())
        gaps = [after - before for before, after in zip(prober.probes, prober.probes[1:], strict=False)]
        assert gaps == pytest.approx([SPACING_S + SETTLE_S])

    with_llama(1, body)


def test_a_steady_flow_of_cancelled_decodes_does_not_keep_an_abandoned_prefill_alive() -> None:
    """Each of them asks for an early probe.

    Together they must not be probed more often than the spacing allows.
    """

    async def body(llama: LlamaModel, prober: Prober) -> None:
        prefill = asyncio.create_task(prober.request(LONG_PREFILL, leaves_after_s=2.0))
        quick = ModelledWork(prefill_s=0.0, tokens=1)
        for _ in range(60):
            await prober.request(ModelledWork(prefill_s=0.0, tokens=4, gap_s=0.02), leaves_after_s=0.05)
            await prober.request(quick)
        await prefill

    with_llama(3, body)


def test_a_request_that_starts_after_its_close_is_waited_for() -> None:
    """20 MB were sent and the connection closed at once. The slot is idle for 2.4 s, and busy after that."""

    async def body(llama: LlamaModel, prober: Prober) -> None:
        late = ModelledWork(body_mib=20, parsing=0.97, prefill_s=17.0)
        await prober.request(late, leaves_after_s=0.0)
        left_at = prober.loop.time()
        served_at = await prober.request(ModelledWork())
        assert served_at - left_at > late.parsing_s + 1.0

    with_llama(1, body)


# -- three live, one in doubt


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole answers"])
def test_the_fourth_slot_is_not_granted_before_it_is_idle(stream: bool) -> None:
    """While other slots stream, an abandoned prefill is not noticed, so it goes on to its end."""

    async def body(llama: LlamaModel, prober: Prober) -> None:
        live = [
            asyncio.create_task(
                prober.request(ModelledWork(stream=stream, prefill_s=0.0, tokens=1500, gap_s=0.02))
            )
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        await prober.request(ModelledWork(prefill_s=10.0, tokens=0), leaves_after_s=1.0)
        left_at = prober.loop.time()
        served_at = await prober.request(ModelledWork(prefill_s=0.1, tokens=1))
        if stream:
            assert 9.0 <= served_at - left_at <= 9.0 + SPACING_S + 2 * SETTLE_S
        else:
            assert served_at - left_at <= 12.0
        await asyncio.gather(*live)

    with_llama(4, body)


def test_long_answers_that_say_nothing_before_their_end_do_not_keep_a_slot_out() -> None:
    """Three requests of ten minutes are live and one was abandoned.

    Some other slot is busy for ten minutes.
    """

    async def body(llama: LlamaModel, prober: Prober) -> None:
        live = [
            asyncio.create_task(prober.request(ModelledWork(stream=False, prefill_s=600.0, tokens=0)))
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        await prober.request(LONG_PREFILL, leaves_after_s=1.0)
        left_at = prober.loop.time()
        served_at = await prober.request(ModelledWork())
        assert served_at - left_at <= 12.0
        await asyncio.gather(*live)

    with_llama(4, body)


@pytest.mark.parametrize("seconds", [0.3, 2.0, 8.0, 30.0])
def test_constant_load_of_whole_answers_does_not_keep_a_slot_out(seconds: float) -> None:
    """No single answer shows the slot idle, because all others are always busy with silent work."""

    async def body(llama: LlamaModel, prober: Prober) -> None:
        stop = asyncio.Event()

        async def client() -> None:
            while not stop.is_set():
                await prober.request(ModelledWork(stream=False, prefill_s=seconds, tokens=0))

        await prober.request(ModelledWork(prefill_s=3.0), leaves_after_s=1.0)
        clients = [asyncio.create_task(client()) for _ in range(6)]
        left_at = prober.loop.time()
        while len(prober.pool.quarantine):
            await asyncio.sleep(0.1)
        assert prober.loop.time() - left_at <= 5.0 + min(seconds, CERTAIN_S)
        stop.set()
        await asyncio.gather(*clients)

    with_llama(4, body)
