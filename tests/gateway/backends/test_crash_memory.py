"""Suspects: requests that were lost with one death are known at the next, for a while and up to a number."""

from __future__ import annotations

from slotgate.gateway.backends.crash_memory import MOST, REMEMBERED_S, TOGETHER_S, CrashMemory


def test_requests_lost_together_were_lost_with_one_death() -> None:
    memory = CrashMemory()
    first = memory.lost("a", granted_at=0.0, now=5.0)
    assert memory.lost("a", granted_at=4.0, now=5.0 + TOGETHER_S) is first
    assert first.requests == 2
    assert memory.lost("b", granted_at=0.0, now=5.0) is not first
    assert memory.lost("a", granted_at=0.0, now=5.1 + TOGETHER_S) is not first


def test_request_that_began_after_a_loss_was_lost_with_another_death() -> None:
    memory = CrashMemory()
    first = memory.lost("a", granted_at=0.0, now=5.0)
    assert memory.lost("a", granted_at=5.1, now=5.2) is not first


def test_two_equal_requests_of_one_death_are_no_suspects_of_an_earlier_one() -> None:
    memory = CrashMemory()
    loss = memory.lost("a", granted_at=0.0, now=5.0)
    assert not memory.suspect(1, loss, 5.0)
    assert not memory.suspect(1, loss, 5.0)
    assert memory.suspect(1, memory.lost("b", granted_at=0.0, now=5.0), 5.0)


def test_a_request_that_was_sent_twice_is_a_suspect_at_once() -> None:
    memory = CrashMemory()
    assert not memory.suspect(1, None, 5.0)
    assert memory.suspect(1, None, 5.0)
    assert memory.suspect(1, memory.lost("a", granted_at=0.0, now=5.0), 5.0)


def test_suspects_are_forgotten_in_time() -> None:
    memory = CrashMemory()
    memory.suspect(1, None, 0.0)
    assert memory.suspect(1, None, REMEMBERED_S)
    assert not memory.suspect(1, None, 2 * REMEMBERED_S + 1)


def test_only_the_latest_suspects_are_remembered() -> None:
    memory = CrashMemory()
    for fingerprint in range(MOST + 1):
        memory.suspect(fingerprint, None, 0.0)
    assert len(memory) == MOST
    assert memory.suspect(1, None, 0.0)
    assert not memory.suspect(0, None, 0.0)
