"""Runs with real brokers and links: what is delegated takes the way to the fixed broker, and the farm."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow_workshop.lab.harness.brokers import Hedgerow
from hedgerow_workshop.lab.harness.measure import count_doubled, count_lost, delays_ms
from hedgerow_workshop.lab.harness.programs import LabError
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.lab.morales import measure
from hedgerow_workshop.lab.morales.brokers import FixedBroker, MobileBroker, Station
from hedgerow_workshop.lab.morales.delays import Batch, measure_batch
from hedgerow_workshop.lab.morales.farm import FarmRun, FarmTimes
from hedgerow_workshop.lab.morales.setting import NAIVE, TOPICS, WIFI, Algorithm, Uplink
from hedgerow_workshop.lab.morales.traffic import random_traffic


def test_a_mobile_broker_is_told_its_fixed_one_and_its_algorithm(tmp_path: Path) -> None:
    told = MobileBroker("m", tmp_path, ("--fixed", "mqtt://127.0.0.1:4000"), Algorithm(0.1)).options
    common = (
        "--role mobile --fixed mqtt://127.0.0.1:4000 --domain farm/sector1 --no-move-clients --hot-every 0.4"
    )
    assert " ".join(told) == f"{common} --hot-window 0.1"
    told = MobileBroker("m", tmp_path, ("--fixed", "mqtt://127.0.0.1:4000"), NAIVE[1]).options
    assert " ".join(told) == f"{common} --hot-algorithm naive --naive-half 1"


async def test_what_is_delegated_takes_the_way_to_the_fixed_broker(tmp_path: Path) -> None:
    said: list[str] = []
    batch = Batch(Uplink.LTE, (Algorithm(2.0), *NAIVE), [replace(random_traffic(1, 1.0), publications=100)])
    records = await measure_batch(batch, tmp_path, said.append)
    assert [str(record.spec) for record in records] == [
        "lte random hot2s",
        "lte random naive0",
        "lte random naive1",
    ]
    assert len(said) == 1
    publications = [tuple(record.topics) for record in records]
    assert len(set(publications)) == 1
    round_trip_ms = 2 * 15.12
    fastest: list[dict[str, float]] = []
    for record in records:
        assert (count_lost(record.hearings()), count_doubled(record.hearings())) == (0, 0)
        assert min(delays_ms(record.hearings())) >= 2 * 0.473
        took = dict.fromkeys(TOPICS, 1e9)
        for number, at, _ in record.arrived:
            if number >= record.warm_up:
                topic = record.topics[number]
                took[topic] = min(took[topic], 1_000 * (at - record.sent[number]))
        fastest.append(took)
    for topic in TOPICS:  # the two halves: each topic is delegated by one of them
        assert (fastest[1][topic] >= round_trip_ms) != (fastest[2][topic] >= round_trip_ms)
    share = measure.share_beyond(records[0])
    assert share is not None
    assert 5 < share < 95


async def test_a_fixed_broker_that_is_not_reached_is_told(tmp_path: Path) -> None:
    with ExitStack() as stack:
        fixed = stack.enter_context(FixedBroker("fixed", tmp_path / "fixed"))
        await fixed.start()
        station = Station("mobile", tmp_path / "mobile", fixed, WIFI, Algorithm(2.0))
        station.link_up_s = 0.2
        async with Link(("127.0.0.1", 0), (fixed.host, fixed.port)) as cut:
            cut.cut()
            station.uplink = Link(("127.0.0.1", 0), cut.address)
            with pytest.raises(LabError, match="^broker mobile does not reach its fixed broker"):
                await station.__aenter__()


async def test_a_broker_that_ends_is_told(tmp_path: Path) -> None:
    with ExitStack() as stack:
        fixed = stack.enter_context(Hedgerow("fixed", tmp_path / "fixed"))
        fixed.options = FixedBroker.options
        await fixed.start()
        async with Station("mobile", tmp_path / "mobile", fixed, WIFI, Algorithm(2.0)) as station:
            station.check()
            assert fixed.process is not None
            fixed.process.kill()
            fixed.process.wait()
            with pytest.raises(LabError, match="^broker fixed ended by itself"):
                station.check()


async def test_the_farm(tmp_path: Path) -> None:
    said: list[str] = []
    times = FarmTimes(covered_s=0.3, outage_s=1.0, quiet_s=0.2)
    record = await FarmRun(tmp_path, said.append, True, times).perform()
    assert list(measure.missing(record)) == []
    assert measure.doubled(record) == 0
    assert measure.farm_heard(record, "office") == 100
    assert [outage.what for outage in record.outages] == ["field", "uplink"]
    assert list(record.arrived) == list(record.since) == ["office", "irrigation", "sprayer"]
    assert record.since["office"] < record.outages[0].began_at < record.since["sprayer"]
    for outage in record.outages:  # something waited in each
        waits = [arrival.at for _, arrival, _ in measure.waits(record)]
        assert any(outage.ended_at <= at <= outage.caught_up_at for at in waits)
    assert said[-1] == "farm: a second mobile broker enters …"
