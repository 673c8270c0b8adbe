"""Signals to stop a program that come together, and one that asks again."""

from __future__ import annotations

import time

import pytest

from hedgerow.cli.stop_signals import TOGETHER_S, StopSignals


def test_those_that_come_together_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    signals = StopSignals()
    assert not signals.asks_again()
    now += TOGETHER_S / 2  # as `timeout` sends it to the group
    assert not signals.asks_again()
    now += TOGETHER_S
    assert signals.asks_again()
