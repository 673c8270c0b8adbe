"""What a journal costs: the measurement itself, in a moment."""

from __future__ import annotations

from hedgerow_workshop.bench.journal_cost import measure


def test_a_round_compares_and_counts_what_was_recorded() -> None:
    cost = measure(stretches=1, stretch_s=0.05)
    assert min(cost.share, cost.processor) > 0
    assert 0 < cost.recorded <= 1, "of what went to the broker that records, and of nothing else"
