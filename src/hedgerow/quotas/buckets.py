"""Token buckets, and the meter of one connection, which is under several of them.
 A bucket is kept as one number, the time at which it will be full again. It holds a second's worth, so that
bursts of a second pass; whatever was taken beyond it is made up for by waiting longer. A bucket that is full
is as good as none: only those that are not are kept when the last connection under them ends, at most
`MAX_KEPT`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

BURST_S = 1.0
STEP_S = 0.05  # Whoever waits goes on with so much of a second's worth: each message alone would cost more.
REFUSED_AT_ONCE = 4  # With 800 in a turn, another client's p99 was eight times as long.
MARGIN_S = 0.001  # for what numbers of this size leave out
MAX_KEPT = 10_000  # A client that comes again at once has the debts of the one before.
ENOUGH = 1_000_000  # messages: no chunk has as many


class TokenBucket:
    __slots__ = ("full_at", "per_s")

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.full_at = 0.0

    def room(self, now: float) -> float:
        """How much may be taken; less than nothing where too much was."""
        if not self.per_s:
            return ENOUGH
        return (BURST_S - max(self.full_at - now, 0.0)) * self.per_s

    def take(self, amount: float, now: float) -> None:
        if self.per_s:
            self.full_at = max(self.full_at, now) + amount / self.per_s

    def ready_at(self) -> float:
        """When there is room for a step."""
        if not self.per_s:
            return 0.0
        return self.full_at - BURST_S + min(max(1 / self.per_s, STEP_S), BURST_S) + MARGIN_S


class Account:
    """Of a client, a user or a listener: messages and bytes. 0 a second is no bound."""

    __slots__ = ("bytes", "messages")

    def __init__(self, messages_per_s: float, bytes_per_s: float) -> None:
        self.messages = TokenBucket(messages_per_s)
        self.bytes = TokenBucket(bytes_per_s)

    def is_full(self, now: float) -> bool:
        return max(self.messages.full_at, self.bytes.full_at) <= now

    def room(self, now: float) -> int:
        if self.bytes.room(now) <= 0:
            return 0
        # One publication is taken from a full bucket, however few a second there are.
        return int(max(self.messages.room(now), self.messages.full_at <= now))

    def charge(self, messages: int, size: int, now: float) -> None:
        self.messages.take(messages, now)
        self.bytes.take(size, now)

    def ready_at(self) -> float:
        return max(self.messages.ready_at(), self.bytes.ready_at())

    def set_rates(self, messages_per_s: float, bytes_per_s: float) -> None:
        """What was taken stays taken, in what it takes to make up for it at the old rate."""
        self.messages.per_s, self.bytes.per_s = messages_per_s, bytes_per_s


class Accounts:
    """Those of one kind, by name."""

    def __init__(self, messages_per_s: float, bytes_per_s: float) -> None:
        self.rates = messages_per_s, bytes_per_s
        self._accounts: dict[Hashable, Account] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def are_bounded(self) -> bool:
        return any(self.rates)

    def get(self, name: Hashable, now: float) -> Account:
        account = self._accounts.get(name)
        if account is None:
            if len(self._accounts) >= MAX_KEPT:
                self._make_room(now)
            account = self._accounts[name] = Account(*self.rates)
        return account

    def _make_room(self, now: float) -> None:
        owing = {name: each for name, each in self._accounts.items() if not each.is_full(now)}
        # Those of whoever is connected are held by their meters, too, and go on as they are.
        self._accounts = dict(list(owing.items())[-MAX_KEPT // 2 :])

    def set_rates(self, messages_per_s: float, bytes_per_s: float) -> None:
        self.rates = messages_per_s, bytes_per_s
        for account in self._accounts.values():
            account.set_rates(*self.rates)


class ConnectionMeter:
    """What one connection may publish, under all of its accounts; see `broker/metered.py`."""

    __slots__ = ("_accounts", "_clock", "_on_refused", "_refusals")

    def __init__(
        self, accounts: list[Account], clock: Callable[[], float], on_refused: Callable[[float], None]
    ) -> None:
        """`on_refused` is called with the time at which the connection is to go on."""
        self._accounts = accounts
        self._clock = clock
        self._on_refused = on_refused
        self._refusals = 0  # since there was room

    def room(self) -> int:
        now = self._clock()
        room = min(account.room(now) for account in self._accounts)
        if room > 0:
            self._refusals = 0
        return room

    def charge(self, messages: int, size: int) -> None:
        now = self._clock()
        for account in self._accounts:
            account.charge(messages, size, now)

    def may_refuse(self) -> bool:
        self._refusals += 1
        return self._refusals <= REFUSED_AT_ONCE

    def refused(self) -> None:
        self._on_refused(max(account.ready_at() for account in self._accounts))
