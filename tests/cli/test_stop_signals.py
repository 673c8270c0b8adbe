"""Signals to stop a program that come together, and one that asks again."""

from __future__ import annotations

import signal
from contextlib import nullcontext

import pytest

from hedgerow.cli.long_runs import signals_as_exceptions
from hedgerow.cli.stop_signals import TOGETHER_S, StopSignals, ending_signals


def test_those_that_come_together_are_one() -> None:
    now = 100.0
    signals = StopSignals(clock=lambda: now)
    assert not signals.asks_again()
    now += TOGETHER_S / 2  # as `timeout` sends it to the group
    assert not signals.asks_again()
    now += TOGETHER_S
    assert signals.asks_again()


@pytest.mark.parametrize("is_ignored", [False, True])
def test_sighup_ends_nothing_that_was_started_with_nohup(is_ignored: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        leaves = nullcontext() if is_ignored else pytest.raises(SystemExit, match="129")
        with leaves, signals_as_exceptions():
            signal.raise_signal(signal.SIGHUP)
        with pytest.raises(SystemExit, match="143"), signals_as_exceptions():
            signal.raise_signal(signal.SIGTERM)
        ending = {signal.SIGINT} if is_ignored else {signal.SIGINT, signal.SIGHUP}
        assert set(ending_signals(signal.SIGINT, signal.SIGHUP)) == ending
    finally:
        signal.signal(signal.SIGHUP, before)
