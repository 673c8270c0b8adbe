"""The steady clock reads as Unix time and follows the monotonic clock alone."""

from __future__ import annotations

import time

from hedgerow.node.clock import SteadyClock


def test_it_reads_as_unix_time() -> None:
    before = time.time()
    now = SteadyClock()()
    assert before - 0.1 <= now <= time.time() + 0.1


def test_it_never_goes_back() -> None:
    clock = SteadyClock()
    readings = [clock() for _ in range(10_000)]
    assert readings == sorted(readings)


def test_setting_the_system_time_does_not_move_it() -> None:
    wall, elapsed = 1_700_000_000.0, 50.0
    clock = SteadyClock(lambda: wall, lambda: elapsed)
    wall -= 86_400.0
    elapsed += 2.5
    assert clock() == 1_700_000_002.5
