"""A little overload between real nodes and a real Mosquitto."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow_workshop.lab.overload import measure
from hedgerow_workshop.lab.overload.record import JOURNAL, OverloadRecord, Readers
from hedgerow_workshop.lab.overload.run import OverloadRun
from hedgerow_workshop.lab.overload.settings import BROKERS, FAST, MULTICAST, NODES
from hedgerow_workshop.programs import find_program

LITTLE = replace(FAST, seconds=1.0, messages=400, kills=0, multicast_rate=40, sensor_rate=40, quiet_s=0.1)

pytestmark = pytest.mark.skipif(find_program("mosquitto") is None, reason="mosquitto is not installed")


def assert_whole(record: OverloadRecord) -> None:
    assert list(measure.incidents(record)) == []
    assert record.flaps == []
    assert record.tracebacks == []
    assert record.sensors.uncounted == 0
    assert record.arrived.keys() == {JOURNAL, *(f"reader-{name}" for name in BROKERS)}
    assert record.memory.keys() == set(BROKERS)
    assert min(record.memory.values()) > 0
    for each in BROKERS:
        assert record.sent[each]


async def test_slow_readers_get_everything_in_the_end(tmp_path: Path) -> None:
    record = await OverloadRun(LITTLE, Readers.SLOW, tmp_path).perform()
    assert_whole(record)
    assert [len(record.sent[name]) for name in BROKERS] == [400] * len(BROKERS)
    # They publish at a pace, and no longer than the run: a busy machine may leave one out.
    assert all(0.5 * 40 <= len(record.sent[name]) <= 40 for name in MULTICAST)
    assert record.sensors.sent == record.sensors.recorded == 120
    early = [each for each in record.arrived[f"reader-{NODES[0]}"] if each.at < record.began_at + 0.9]
    assert len(early) < 0.5 * 4 * 400


@pytest.mark.soak
async def test_nothing_is_lost_when_a_node_is_killed(tmp_path: Path) -> None:
    settings = replace(LITTLE, seconds=3.0, messages=2_000, kills=1, killed_s=0.5)
    record = await OverloadRun(settings, Readers.FAST, tmp_path).perform()
    assert_whole(record)
    assert [what for _, what in record.happened] == ["west killed", "west started"]
