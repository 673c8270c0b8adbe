"""What a journal costs: the measurement itself, in a moment."""

from __future__ import annotations

from pathlib import Path

from hedgerow.bench.journal_cost import measure, pair_of
from hedgerow.bench.peers import BROKERS, OURS


def test_a_round_compares_and_counts_what_was_recorded() -> None:
    cost = measure(stretches=1, stretch_s=0.05)
    assert min(cost.share, cost.processor) > 0
    assert 0 < cost.recorded <= 1


def test_only_one_of_them_has_a_journal() -> None:
    journal, plain = (broker.command(1, Path()) for broker in pair_of(BROKERS[OURS], Path("there")))
    assert journal[: len(plain)] == plain
    assert journal[len(plain) :][:4] == ["--journal", "#", "--journal-dir", "there"]
