"""A little storm between real nodes, with subscribers of every kind, whole and failing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow_workshop.lab.harness.programs import LabError
from hedgerow_workshop.lab.storm import measure
from hedgerow_workshop.lab.storm.record import StormFault, StormRecord, SubscriberKind
from hedgerow_workshop.lab.storm.run import StormRun
from hedgerow_workshop.lab.storm.settings import FAST, STORM

LITTLE = replace(FAST, subscribers=12, seconds=3.2, killed_s=0.5, cut_s=1.5)
MOVING = (SubscriberKind.EXTENSION, SubscriberKind.PAHO_5, SubscriberKind.GMQTT_5)


async def perform(fault: StormFault, directory: Path) -> StormRecord:
    record = await StormRun(LITTLE, fault, list(SubscriberKind), directory).perform()
    assert len(record.tallies) == 12
    assert len(record.sent[STORM]) == 32
    assert sum(map(len, record.sent.values())) == 320
    assert record.tracebacks == []
    return record


async def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    record = await perform(StormFault.NONE, tmp_path)
    assert list(measure.incidents(record)) == []
    assert len(record.flips) >= 4
    for kind in SubscriberKind:
        counts = measure.count(record, kind)
        assert counts is not None
        assert counts.expected > 0
        assert (counts.moves > 0) is (kind in MOVING)
    assert set(record.busy) == {
        "this process",
        "broker fixed",
        "broker mobile",
        *(f"{kind} subscribers" for kind in SubscriberKind),
    }


@pytest.mark.soak
@pytest.mark.parametrize(
    ("fault", "happened"), [(StormFault.KILLED, ["killed", "started"]), (StormFault.CUT, ["cut", "restored"])]
)
async def test_nothing_is_lost_when_something_fails(
    fault: StormFault, happened: list[str], tmp_path: Path
) -> None:
    record = await perform(fault, tmp_path)
    assert [what for _, what in record.happened] == happened
    for kind in SubscriberKind:
        counts = measure.count(record, kind)
        assert counts is not None
        assert counts.lost == 0


async def test_a_node_without_a_fixed_one_is_told_of(tmp_path: Path) -> None:
    storm = StormRun(LITTLE, StormFault.NONE, [SubscriberKind.EXTENSION], tmp_path, link_s=0.3)
    storm.fixed.options = ()  # It supports nobody.
    with pytest.raises(LabError, match="^broker mobile: no link to the fixed node within 0.3 s: "):
        await storm.perform()
