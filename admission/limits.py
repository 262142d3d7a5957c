r"""What a tenant may ask for in a minute and in a day.

    reserve(estimate) --the request ran--> settle(real count)
                      \--it never ran----> refund()

The limits of a minute are token buckets: full at first, filled evenly, each request takes its estimate and
the difference to the real count is taken or given back when that is known. A level may go below nothing by
such a correction: then the tenant waits for longer. The limit of a day counts UTC days; what the day has seen
before this process began is handed to `restore`. A request whose estimate is more than a limit could ever
give is let in when the limit is untouched: it is the backend's to say what is too long.

A reservation that is refused takes nothing, from any of the limits. Pure: the clocks are given.
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
    """None: without limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None


@dataclass(frozen=True, slots=True)
class RateState:
    """Of one limit of a minute."""

    limit: int
    remaining: int
    full_in_s: float
    """Until nothing of it is used."""


class TokenBucket:
    """`limit` a minute, all of which may be taken at once."""

    __slots__ = ("_at", "_level", "limit")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._level = float(limit)
        self._at = now

    def __repr__(self) -> str:
        return f"<TokenBucket {self._level:.0f}/{self.limit}>"

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until this much can be taken; 0 if it can now."""
        lacking = min(amount, self.limit) - self._filled(now)
        return max(0.0, lacking * _MINUTE_S / self.limit)

    def take(self, amount: float, now: float) -> None:
        """A negative amount is given back."""
        self._level = min(float(self.limit), self._filled(now) - amount)

    def resize(self, limit: int, now: float) -> None:
        """What was used stays used, but makes no debt that was not there."""
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
    """One tenant's limits, and what is used of them."""

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
        """Raises `Refused` with the first limit that is in the way."""
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
        """Negative amounts are given back; what belongs to an earlier day does not touch this one."""
        now = self._limiter.clock()
        if self.requests is not None:
            self.requests.take(requests, now)
        if self.tokens is not None:
            self.tokens.take(tokens, now)
        if day == self._limiter.day:
            self.used_today += tokens


class UsageReservation:
    """What one request has taken of its tenant's limits."""

    __slots__ = ("_account", "_day", "_tokens")

    def __init__(self, account: TenantAccount | None, tokens: float, day: datetime.date) -> None:
        self._account = account
        self._tokens = tokens
        self._day = day

    def settle(self, tokens: float) -> None:
        """It came to so many tokens. The last call counts."""
        if self._account is not None:
            self._account.take(0, tokens - self._tokens, self._day)
            self._tokens = tokens

    def refund(self) -> None:
        """It never ran: as if it had not been asked."""
        if self._account is not None:
            self._account.take(-1, -self._tokens, self._day)
            self._account = None


class Limiter:
    def __init__(self, clock: Callable[[], float], utc: Callable[[], datetime.datetime]) -> None:
        """`clock` is monotonic, in seconds; `utc` says what day it is."""
        self.clock = clock
        self._utc = utc
        self.day = utc().date()
        self._accounts: dict[str, TenantAccount] = {}

    def __repr__(self) -> str:
        return f"<Limiter of {len(self._accounts)} tenants>"

    def configure(self, limits: Mapping[str, TenantLimits]) -> None:
        """The limits by tenant, from now on; what was used before stays used.

        A tenant without limits has an account too: a quota that it is given later counts the whole day.
        """
        for tenant in self._accounts.keys() - limits.keys():
            del self._accounts[tenant]
        for tenant, wanted in limits.items():
            if tenant in self._accounts:
                self._accounts[tenant].change(wanted)
            else:
                self._accounts[tenant] = TenantAccount(wanted, self)

    def restore(self, day: datetime.date, tokens: Mapping[str, float]) -> None:
        """What was used on this day before this process began."""
        if day == self.day:
            for tenant, used in tokens.items():
                if tenant in self._accounts:
                    self._accounts[tenant].used_today += used

    def reserve(self, tenant: str, tokens: float) -> UsageReservation:
        """Take one request and the estimated tokens. Raises `Refused`, and then nothing is taken."""
        self._turn_the_day()
        account = self._accounts.get(tenant)
        if account is not None:
            account.check(tokens)
            account.take(1, tokens, self.day)
        return UsageReservation(account, tokens, self.day)

    def requests_of(self, tenant: str) -> RateState | None:
        """None without such a limit."""
        account = self._accounts.get(tenant)
        return account.requests.state(self.clock()) if account and account.requests else None

    def tokens_of(self, tenant: str) -> RateState | None:
        account = self._accounts.get(tenant)
        return account.tokens.state(self.clock()) if account and account.tokens else None

    def quota_of(self, tenant: str) -> int | None:
        """Tokens a day; None without such a limit."""
        account = self._accounts.get(tenant)
        return account.limits.tokens_per_day if account else None

    def used_today(self, tenant: str) -> float:
        """Tokens, those that are reserved included; 0 for a tenant that is not configured."""
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
