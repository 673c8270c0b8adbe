"""How much may pass: bursts, debts, and what is remembered of whom."""

from __future__ import annotations

import random

import pytest

from hedgerow.quotas.buckets import MAX_KEPT, Account, Accounts, ConnectionMeter


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("per_s", [0.2, 1, 7, 1_000, 1e6])
def test_over_time_the_rate_is_kept(per_s: float) -> None:
    """Whoever takes all that there is room for, and waits as long as told, gets the rate, and a burst."""
    clock, until = Clock(), [0.0]
    meter = ConnectionMeter([Account(per_s, 0)], clock, lambda at: until.__setitem__(0, at))
    began_at, passed = clock.now, 0
    for _ in range(200):
        room = meter.room()
        if room:
            taken = min(room, random.Random(room).randint(1, room))
            meter.charge(taken, 1)
            passed += taken
        else:
            meter.refused()
            assert until[0] > clock.now
            clock.now = until[0]
            assert meter.room() > 0
    most = per_s * (clock.now - began_at) + max(per_s, 1)
    assert passed <= most + 1
    assert passed >= 0.8 * per_s * (clock.now - began_at)


def test_bytes_are_made_up_for() -> None:
    clock, until = Clock(), [0.0]
    meter = ConnectionMeter([Account(0, 1_000)], clock, lambda at: until.__setitem__(0, at))
    assert meter.room() > 1_000_000 - 1
    meter.charge(1, 5_000)  # one that is larger than what a second has
    assert meter.room() == 0
    meter.refused()
    assert until[0] == pytest.approx(clock.now + 4.05, abs=0.01)
    clock.now = until[0]
    assert meter.room() > 0


def test_the_strictest_account_decides() -> None:
    clock = Clock()
    shared = Account(5, 0)
    one, other = (ConnectionMeter([Account(3, 0), shared], clock, lambda at: None) for _ in range(2))
    assert one.room() == 3
    one.charge(3, 1)
    assert (one.room(), other.room()) == (0, 2)


def test_debts_are_remembered_and_bounded() -> None:
    accounts, now = Accounts(1, 0), 100.0
    accounts.get("owing", now).charge(50, 1, now)
    for number in range(MAX_KEPT):
        accounts.get(number, now)
    assert len(accounts) <= MAX_KEPT
    assert accounts.get("owing", now).room(now) < 0 or accounts.get("owing", now).room(now) == 0
    for number in range(3 * MAX_KEPT):
        accounts.get(-number - 1, now).charge(5, 1, now)
    assert len(accounts) <= MAX_KEPT


def test_new_rates_hold_at_once() -> None:
    accounts = Accounts(1, 0)
    account = accounts.get("a", 100.0)
    accounts.set_rates(500, 0)
    assert account.room(100.0) == 500
    accounts.set_rates(0, 0)
    assert account.room(100.0) > 500
