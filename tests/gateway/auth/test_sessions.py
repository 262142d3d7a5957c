"""Limits and lifetimes of sessions and wrong keys. Time is an argument."""

from __future__ import annotations

import pytest

from slotgate.gateway.auth.sessions import LIFETIME_S, MOST_SESSIONS, Sessions
from slotgate.gateway.auth.sign_in_limiter import A_MINUTE, SignInLimiter
from slotgate.gateway.http.errors import CapacityError


class SteppedClock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_session_is_found_until_its_time_is_over() -> None:
    clock = SteppedClock()
    sessions = Sessions(clock)
    session_id = sessions.open(b"digest")
    clock.now += LIFETIME_S - 1
    found = sessions.find(session_id)
    assert found is not None
    assert found.key_digest == b"digest"
    clock.now += 1
    assert sessions.find(session_id) is None
    assert len(sessions) == 0


def test_ids_are_unique_and_do_not_reveal_the_key() -> None:
    sessions = Sessions(SteppedClock())
    ids = {sessions.open(b"digest") for _ in range(10)}
    assert len(ids) == 10
    assert all(len(session_id) >= 43 for session_id in ids)
    assert not any(session_id in repr(sessions) for session_id in ids)


def test_a_session_beyond_the_limit_closes_the_oldest() -> None:
    sessions = Sessions(SteppedClock())
    ids = [sessions.open(b"digest") for _ in range(MOST_SESSIONS + 1)]
    assert len(sessions) == MOST_SESSIONS
    assert [sessions.find(ids[0]), sessions.find(ids[1]) is None] == [None, False]


def test_sessions_end_with_the_key_that_opened_them() -> None:
    sessions = Sessions(SteppedClock())
    gone, kept = sessions.open(b"old"), sessions.open(b"new")
    sessions.keep(lambda digest: digest == b"new")
    assert sessions.find(gone) is None
    assert sessions.find(kept) is not None


@pytest.mark.parametrize("session_id", ["", "x", "é", "\udc80"])
def test_no_other_id_finds_a_session(session_id: str) -> None:
    sessions = Sessions(SteppedClock())
    sessions.open(b"digest")
    assert sessions.find(session_id) is None
    sessions.close(session_id)
    assert len(sessions) == 1


def test_an_address_may_try_a_few_wrong_keys_a_minute() -> None:
    clock = SteppedClock()
    wrong = SignInLimiter(clock)
    for _ in range(A_MINUTE):
        wrong.check("10.0.0.1")
        wrong.count("10.0.0.1")
    with pytest.raises(CapacityError) as refused:
        wrong.check("10.0.0.1")
    assert refused.value.status == 429
    assert (b"retry-after", b"6") in refused.value.headers()
    wrong.check("10.0.0.2")
    clock.now += 6
    wrong.check("10.0.0.1")


def test_all_addresses_of_an_ipv6_network_are_one() -> None:
    wrong = SignInLimiter(SteppedClock())
    for host in range(A_MINUTE):
        wrong.count(f"2001:db8:1:2::{host}")
    with pytest.raises(CapacityError):
        wrong.check("2001:db8:1:2:ffff::1")
    wrong.check("2001:db8:1:3::1")


def test_only_the_latest_addresses_are_remembered() -> None:
    wrong = SignInLimiter(SteppedClock())
    for host in range(3000):
        wrong.count(f"10.1.{host // 256}.{host % 256}")
    assert repr(wrong) == "<SignInLimiter of 1024 addresses>"
