r"""The limits of a tenant in a minute and in a day.

    reserve(estimate) --the request ran--> settle(real count)
                      \--it never ran----> refund()

The limits of a minute are token buckets. They are full at first and fill evenly. Each request takes its
estimate, and when the real count is known, the difference is taken or given back. Such a correction can make
a level negative; then the tenant waits for longer. The limit of a day counts UTC days, and `restore` adds the
usage from before this process began. A request whose estimate exceeds a whole limit is let in while the limit
is unused, because the backend decides which prompts are too long.

A refused reservation takes nothing from any limit. This module reads no clock; the clocks are arguments.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slotgate.admission.errors import Refusal, Refused

__all__ = ["Limiter", "RateState", "TenantLimits", "UsageReservation"]

_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of one tenant. None means no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None


@dataclass(frozen=True, slots=True)
class RateState:
    """The state of one limit of a minute, as clients see it in headers."""

    limit: int
    remaining: int
    full_in_s: float
    """Seconds until the limit is unused again."""


class TokenBucket:
    """`limit` per minute. All of it may be taken at once."""

    __slots__ = ("_at", "_level", "limit")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._level = float(limit)
        self._at = now

    def __repr__(self) -> str:
        return f"<TokenBucket {self._level:.0f}/{self.limit}>"

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until this amount can be taken, 0 if it can be now."""
        lacking = min(amount, self.limit) - self._filled(now)
        return max(0.0, lacking * _MINUTE_S / self.limit)

    def take(self, amount: float, now: float) -> None:
        """Take an amount, or give back a negative one."""
        self._level = min(float(self.limit), self._filled(now) - amount)

    def resize(self, limit: int, now: float) -> None:
        """Change the limit. What was used stays used, but the level does not become negative by this."""
        before = self._filled(now)
        self._level = max(limit - (self.limit - before), min(before, 0.0))
        self.limit = limit

    def state(self, now: float) -> RateState:
        level = self._filled(now)
        return RateState(
            self.limit, max(0, int(level)), max(0.0, (self.limit - level) * _MINUTE_S / self.limit)
        )

    def _filled(self, now: float) -> float:
        grown = (now - self._at) * self.limit / _MINUTE_S
        self._level = min(float(self.limit), self._level + grown)
        self._at = now
        return self._level


class TenantAccount:
    """The limits of one tenant and its usage."""

    __slots__ = ("_limiter", "limits", "requests", "tokens", "used_today")

    def __init__(self, limits: TenantLimits, limiter: Limiter) -> None:
        self._limiter = limiter
        self.limits = limits
        self.requests: TokenBucket | None = None
        self.tokens: TokenBucket | None = None
        self.used_today = 0.0
        self.change(limits)

    def change(self, limits: TenantLimits) -> None:
        now = self._limiter.clock()
        self.limits = limits
        self.requests = _bucket(self.requests, limits.requests_per_minute, now)
        self.tokens = _bucket(self.tokens, limits.tokens_per_minute, now)

    def check(self, tokens: float) -> None:
        """Raise `Refused` for the first limit that leaves no room."""
        now, limits = self._limiter.clock(), self.limits
        quota = limits.tokens_per_day
        if quota is not None and self.used_today + min(tokens, quota) > quota:
            detail = (
                f"this tenant may use {quota} tokens a day (UTC); {self.used_today:.0f} are used or reserved"
            )
            raise Refused(Refusal.QUOTA_EXCEEDED, detail, self._limiter.day_ends_in_s())
        for bucket, amount, what in ((self.requests, 1.0, "requests"), (self.tokens, tokens, "tokens")):
            if bucket is not None and (wait := bucket.wait_s(amount, now)) > 0:
                detail = f"this tenant may use {bucket.limit} {what} a minute"
                raise Refused(Refusal.RATE_LIMITED, detail, wait)

    def take(self, requests: int, tokens: float, day: datetime.date) -> None:
        """Take amounts, or give back negative ones. The tokens of an earlier day do not change this day's."""
        now = self._limiter.clock()
        if self.requests is not None:
            self.requests.take(requests, now)
        if self.tokens is not None:
            self.tokens.take(tokens, now)
        if day == self._limiter.day:
            self.used_today += tokens


class UsageReservation:
    """The part of its tenant's limits that one request has taken."""

    __slots__ = ("_account", "_day", "_tokens")

    def __init__(self, account: TenantAccount | None, tokens: float, day: datetime.date) -> None:
        self._account = account
        self._tokens = tokens
        self._day = day

    def settle(self, tokens: float) -> None:
        """Replace the estimate by the real count. The last call counts."""
        if self._account is not None:
            self._account.take(0, tokens - self._tokens, self._day)
            self._tokens = tokens

    def refund(self) -> None:
        """Give everything back, because the request never ran."""
        if self._account is not None:
            self._account.take(-1, -self._tokens, self._day)
            self._account = None


class Limiter:
    def __init__(self, clock: Callable[[], float], utc: Callable[[], datetime.datetime]) -> None:
        """`clock` returns monotonic seconds, `utc` the time of day."""
        self.clock = clock
        self._utc = utc
        self.day = utc().date()
        self._accounts: dict[str, TenantAccount] = {}

    def __repr__(self) -> str:
        return f"<Limiter of {len(self._accounts)} tenants>"

    def configure(self, limits: Mapping[str, TenantLimits]) -> None:
        """Set the limits by tenant name. Earlier usage stays counted.

        A tenant without limits has an account too, so a quota that it gets later counts the whole day.
        """
        for tenant in self._accounts.keys() - limits.keys():
            del self._accounts[tenant]
        for tenant, wanted in limits.items():
            if tenant in self._accounts:
                self._accounts[tenant].change(wanted)
            else:
                self._accounts[tenant] = TenantAccount(wanted, self)

    def restore(self, day: datetime.date, tokens: Mapping[str, float]) -> None:
        """Add the tokens that were used on this day before this process began."""
        if day == self.day:
            for tenant, used in tokens.items():
                if tenant in self._accounts:
                    self._accounts[tenant].used_today += used

    def reserve(self, tenant: str, tokens: float) -> UsageReservation:
        """Take one request and the estimated tokens.

        Raises `Refused` and takes nothing if a limit is in the way.
        """
        self._turn_the_day()
        account = self._accounts.get(tenant)
        if account is not None:
            account.check(tokens)
            account.take(1, tokens, self.day)
        return UsageReservation(account, tokens, self.day)

    def requests_of(self, tenant: str) -> RateState | None:
        """Return the state of the request limit, or None without one."""
        account = self._accounts.get(tenant)
        return account.requests.state(self.clock()) if account and account.requests else None

    def tokens_of(self, tenant: str) -> RateState | None:
        account = self._accounts.get(tenant)
        return account.tokens.state(self.clock()) if account and account.tokens else None

    def quota_of(self, tenant: str) -> int | None:
        """Return the tokens per day, or None without such a limit."""
        account = self._accounts.get(tenant)
        return account.limits.tokens_per_day if account else None

    def used_today(self, tenant: str) -> float:
        """Return the tokens used or reserved today, 0 for a tenant that is not configured."""
        self._turn_the_day()
        account = self._accounts.get(tenant)
        return account.used_today if account else 0.0

    def day_ends_in_s(self) -> float:
        now = self._utc()
        midnight = datetime.datetime.combine(now.date() + datetime.timedelta(days=1), datetime.time())
        return (midnight - now.replace(tzinfo=None)).total_seconds()

    def _turn_the_day(self) -> None:
        today = self._utc().date()
        if today != self.day:
            self.day = today
            for account in self._accounts.values():
                account.used_today = 0.0


def _bucket(before: TokenBucket | None, limit: int | None, now: float) -> TokenBucket | None:
    if limit is None:
        return None
    if before is None:
        return TokenBucket(limit, now)
    if before.limit != limit:
        before.resize(limit, now)
    return before
