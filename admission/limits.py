r"""The limits of a tenant: requests a minute, tokens a minute, tokens a day.

    reserve(estimate) --the request ran--> settle(real count)
                      \--it never ran----> refund()

The limits per minute are token buckets, which start full and are filled evenly. Each request takes its
estimate. When the real count is known, the difference is taken or given back. Such a correction may bring the
level below zero; then the tenant has to wait longer. Requests that need no slot have a bucket of their own.

The limit per day counts UTC days. `restore` adds the use of earlier processes on the same day.

**A reservation is not use.** Running requests hold their estimates, which are mostly too high. So only
settled tokens can use up a day. If only reservations are in the way, the tenant is told to retry when a
running request will probably have ended. A request whose estimate exceeds the rest of the day reserves that
rest (`of_day`), and the caller limits its answer to it. A request whose estimate exceeds a whole minute's
tokens is let in when the bucket is full.

A reservation that is refused takes nothing from any of the limits. This module is pure: the clocks are given.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slotgate.admission.errors import Refusal, Refused
from slotgate.admission.token_bucket import RateState, TokenBucket

__all__ = ["Limiter", "TenantLimits", "UsageReservation"]

_UNKNOWN_DURATION_S = 2.0
_SMOOTHING = 0.2


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The configured limits of a tenant. None means no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None


class TenantAccount:
    """The limits of one tenant, with the used and the reserved part of each."""

    __slots__ = (
        "_duration_s",
        "_limiter",
        "limits",
        "requests",
        "reserved_today",
        "slot_free_requests",
        "tokens",
        "used_today",
    )

    def __init__(self, limits: TenantLimits, limiter: Limiter) -> None:
        self._limiter = limiter
        self._duration_s = _UNKNOWN_DURATION_S
        self.limits = limits
        self.requests: TokenBucket | None = None
        self.slot_free_requests: TokenBucket | None = None
        """The bucket of requests that need no slot. It has the same limit, and is counted apart."""
        self.tokens: TokenBucket | None = None
        self.used_today = 0.0
        self.reserved_today = 0.0
        """Tokens that running requests have reserved of this day."""
        self.change(limits)

    def change(self, limits: TenantLimits) -> None:
        now = self._limiter.clock()
        self.limits = limits
        self.requests = _bucket(self.requests, limits.requests_per_minute, now)
        self.slot_free_requests = _bucket(self.slot_free_requests, limits.requests_per_minute, now)
        self.tokens = _bucket(self.tokens, limits.tokens_per_minute, now)

    def reserve(self, tokens: float, least: float) -> UsageReservation:
        """Reserve for one request, in whole tokens. So the sum of no reservations is 0, without a rest.

        Raises `Refused` for the first limit in the way, and takes nothing then.
        """
        tokens = float(math.ceil(tokens))
        now = self._limiter.clock()
        of_day = self._of_day(tokens, least)
        day_left = self._day_left
        _take_request(self.requests, now, check_only=True)
        if self.tokens is not None and (wait := self.tokens.wait_s(tokens, now)) > 0:
            settled = self.tokens.wait_s(tokens, now, settled=True)
            detail = f"this tenant may use {self.tokens.limit} tokens a minute"
            raise Refused(Refusal.RATE_LIMITED, detail, max(settled, min(wait, self._retry_s)))
        _take_request(self.requests, now)
        self.reserved_today += of_day
        if self.tokens is not None:
            self.tokens.take(tokens, now)
            self.tokens.reserved += tokens
        day = self._limiter.day
        return UsageReservation(
            self, tokens, of_day, day, day_left=day_left, began_at=now, bucket=self.tokens
        )

    def check(self) -> None:
        """Raises `Refused` if even the smallest request is one too many now. Takes nothing."""
        now = self._limiter.clock()
        self._of_day(1.0, 0.0)
        _take_request(self.requests, now, check_only=True)

    def take_slot_free_request(self) -> None:
        """Count a request that needs no slot. Raises `Refused` if the bucket is empty."""
        _take_request(self.slot_free_requests, self._limiter.clock())

    def release(self, reservation: UsageReservation) -> None:
        """Give back all that the reservation holds, because its request has ended."""
        if reservation.day == self._limiter.day:
            self.reserved_today = max(0.0, self.reserved_today - reservation.of_day)
        if reservation.bucket is not None:
            reservation.bucket.reserved -= reservation.tokens
            reservation.bucket.take(-reservation.tokens, self._limiter.clock())

    def use(self, tokens: float, day: datetime.date) -> None:
        """Count tokens of a day; a negative number is given back.

        Tokens of an earlier day do not count for today.
        """
        if self.tokens is not None:
            self.tokens.take(tokens, self._limiter.clock())
        if day == self._limiter.day:
            self.used_today += tokens

    def give_back_request(self) -> None:
        if self.requests is not None:
            self.requests.take(-1, self._limiter.clock())

    def ended(self, began_at: float) -> None:
        """Learn from a request that has ended how long the requests of this tenant take."""
        took = self._limiter.clock() - began_at
        self._duration_s += _SMOOTHING * (took - self._duration_s)

    @property
    def _retry_s(self) -> float:
        """The seconds until a running request has probably ended."""
        return max(0.1, self._duration_s)

    @property
    def _day_left(self) -> float | None:
        """The tokens of the day that are neither used nor reserved; None without a quota."""
        quota = self.limits.tokens_per_day
        return None if quota is None else quota - self.used_today - self.reserved_today

    def _of_day(self, tokens: float, least: float) -> float:
        """Return how much of an estimate is reserved of the day. Raises `Refused` if there is no room.

        A request whose estimate is above the rest may run, because estimates can be wrong. The day is over
        for it if the tokens that were really used leave less than `least`.
        """
        quota = self.limits.tokens_per_day
        if quota is None or tokens <= 0:
            return max(0.0, tokens)
        rest = quota - self.used_today
        if rest <= 0 or (self.used_today and rest < least):
            detail = f"this tenant may use {quota} tokens a day (UTC); {self.used_today:.0f} are used"
            raise Refused(Refusal.QUOTA_EXCEEDED, detail, self._limiter.day_ends_in_s())
        wanted = min(tokens, rest)
        if wanted > rest - self.reserved_today:
            detail = (
                f"this tenant may use {quota} tokens a day (UTC); {self.used_today:.0f} are used and "
                f"{self.reserved_today:.0f} are reserved by running requests"
            )
            raise Refused(Refusal.RATE_LIMITED, detail, self._retry_s)
        return wanted


class UsageReservation:
    """The part of a tenant's limits that one running request holds."""

    __slots__ = ("_account", "_began_at", "_used", "bucket", "day", "day_left", "of_day", "tokens")

    def __init__(
        self,
        account: TenantAccount | None,
        tokens: float,
        of_day: float,
        day: datetime.date,
        *,
        day_left: float | None,
        began_at: float,
        bucket: TokenBucket | None,
    ) -> None:
        """`account` is None for a tenant without limits. The tokens were taken from `bucket`, if any."""
        self.bucket = bucket
        self.tokens = tokens
        self.of_day = of_day
        self.day_left = day_left
        """The tokens of the day that were left when it was made, its own included; None without a quota."""
        self.day = day
        self._account = account
        self._began_at = began_at
        self._used: float | None = None
        """The number of tokens that were settled; None while the request runs."""

    def settle(self, tokens: float) -> None:
        """Note that the request ran and used so many tokens. Of several calls, the last one counts."""
        if self._account is None:
            return
        if self._used is None:
            self._account.release(self)
            self._account.ended(self._began_at)
            self._used = 0.0
        self._account.use(tokens - self._used, self.day)
        self._used = tokens

    def refund(self) -> None:
        """Give back everything that was taken, because the request never ran."""
        account = self._account
        if account is None:
            return
        if self._used is None:
            account.release(self)
        else:
            account.use(-self._used, self.day)
        account.give_back_request()
        self._account = None


class Limiter:
    def __init__(self, clock: Callable[[], float], utc: Callable[[], datetime.datetime]) -> None:
        """`clock` is monotonic, in seconds; `utc` says what day it is."""
        self.clock = clock
        self._utc = utc
        self.day = utc().date()
        self._accounts: dict[str, TenantAccount] = {}
        self._configured: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"<Limiter of {len(self._accounts)} tenants>"

    def configure(self, limits: Mapping[str, TenantLimits]) -> None:
        """Set the limits of all tenants. Use that was counted before stays counted.

        A tenant without limits has an account too: a quota that it is given later counts the whole day. A
        tenant that is left out keeps its account for the rest of the day, in case it comes back.
        """
        self._configured = frozenset(limits)
        for tenant in self._accounts.keys() - limits.keys():
            self._accounts[tenant].change(TenantLimits())
        for tenant, wanted in limits.items():
            if tenant in self._accounts:
                self._accounts[tenant].change(wanted)
            else:
                self._accounts[tenant] = TenantAccount(wanted, self)

    def restore(self, day: datetime.date, tokens: Mapping[str, float]) -> None:
        """Add the tokens that tenants used on this day before this process began."""
        if day == self.day:
            for tenant, used in tokens.items():
                if tenant in self._accounts:
                    self._accounts[tenant].used_today += used

    def reserve(self, tenant: str, tokens: float, least: float = 0.0) -> UsageReservation:
        """Take one request and the estimated tokens. Raises `Refused`, and takes nothing then.

        `least` is what the request uses in any case: the text of its prompt.
        """
        self._turn_the_day()
        account = self._accounts.get(tenant)
        if account is None:
            return UsageReservation(None, 0.0, 0.0, self.day, day_left=None, began_at=0.0, bucket=None)
        return account.reserve(tokens, least)

    def check(self, tenant: str) -> None:
        """Look at the limits before the body of a request is read, when its size in tokens is not known.

        Raises `Refused` if the tenant has used up its requests of a minute or its tokens of the day.
        """
        self._turn_the_day()
        account = self._accounts.get(tenant)
        if account is not None:
            account.check()

    def take_slot_free_request(self, tenant: str) -> None:
        """Count a request that needs no slot. Raises `Refused` if there are too many in this minute."""
        account = self._accounts.get(tenant)
        if account is not None:
            account.take_slot_free_request()

    def give_back_slot_free_request(self, tenant: str) -> None:
        """Give the request back, because the backend failed to serve it."""
        account = self._accounts.get(tenant)
        if account is not None and account.slot_free_requests is not None:
            account.slot_free_requests.take(-1.0, self.clock())

    def requests_of(self, tenant: str) -> RateState | None:
        """Return the state of the limit for requests that take a slot; None without such a limit."""
        account = self._accounts.get(tenant)
        return account.requests.state(self.clock()) if account and account.requests else None

    def slot_free_requests_of(self, tenant: str) -> RateState | None:
        """Return the state of the limit for requests that need no slot; None without such a limit."""
        account = self._accounts.get(tenant)
        bucket = account.slot_free_requests if account else None
        return bucket.state(self.clock()) if bucket else None

    def tokens_of(self, tenant: str) -> RateState | None:
        account = self._accounts.get(tenant)
        return account.tokens.state(self.clock()) if account and account.tokens else None

    def quota_of(self, tenant: str) -> int | None:
        """Return the tokens per day; None without such a limit."""
        account = self._accounts.get(tenant)
        return account.limits.tokens_per_day if account else None

    def used_today(self, tenant: str) -> float:
        """Return the tokens that ended requests have used today; 0 without configured limits."""
        self._turn_the_day()
        account = self._accounts.get(tenant)
        return account.used_today if account else 0.0

    def reserved_today(self, tenant: str) -> float:
        """Return the tokens that running requests have reserved today; 0 without configured limits."""
        self._turn_the_day()
        account = self._accounts.get(tenant)
        return account.reserved_today if account else 0.0

    def day_ends_in_s(self) -> float:
        now = self._utc()
        midnight = datetime.datetime.combine(now.date() + datetime.timedelta(days=1), datetime.time())
        return (midnight - now.replace(tzinfo=None)).total_seconds()

    def _turn_the_day(self) -> None:
        today = self._utc().date()
        if today != self.day:
            self.day = today
            for tenant in self._accounts.keys() - self._configured:
                del self._accounts[tenant]
            for account in self._accounts.values():
                account.used_today = account.reserved_today = 0.0


def _take_request(bucket: TokenBucket | None, now: float, *, check_only: bool = False) -> None:
    """Take one request. Raises `Refused` if the minute has none left."""
    if bucket is None:
        return
    if (wait := bucket.wait_s(1.0, now)) > 0:
        detail = f"this tenant may use {bucket.limit} requests a minute"
        raise Refused(Refusal.RATE_LIMITED, detail, wait)
    if not check_only:
        bucket.take(1.0, now)


def _bucket(before: TokenBucket | None, limit: int | None, now: float) -> TokenBucket | None:
    if limit is None:
        return None
    if before is None:
        return TokenBucket(limit, now)
    if before.limit != limit:
        before.resize(limit, now)
    return before
