"""What the records of runs that never were say."""

from __future__ import annotations

import pytest

from hedgerow_workshop.lab.harness.measure import count_doubled, count_lost, delays_ms, spread
from hedgerow_workshop.lab.harness.record import Arrival, Received
from hedgerow_workshop.lab.morales import measure
from hedgerow_workshop.lab.morales.measure import MeanDelays
from hedgerow_workshop.lab.morales.record import MoralesRecord, MoralesSpec
from hedgerow_workshop.lab.morales.setting import TOPICS, Algorithm, Uplink
from tests.workshop.lab.morales_records import BEGAN_AT, make_farm, make_run, make_trio

HOT = Algorithm(2.0)


def test_the_mean_is_of_first_arrivals_after_the_warm_up() -> None:
    record = make_run(Uplink.LTE, "random", HOT, beyond=50)
    record.arrived.append(Arrival(100, record.sent[100] + 9))  # a second time
    found = spread(delays_ms(record.hearings()))
    assert found is not None
    assert found.mean == pytest.approx(1 + 15.12)
    assert found.deviation == pytest.approx(15.12)
    assert measure.share_beyond(record) == 50
    assert (count_lost(record.hearings()), count_doubled(record.hearings())) == (0, 1)


def test_what_never_came_is_lost_in_the_warm_up_too() -> None:
    record = make_run(Uplink.LTE, "random", HOT, beyond=50)
    del record.arrived[50], record.arrived[3]
    assert count_lost(record.hearings()) == 2
    empty = MoralesRecord(record.spec, topics=[TOPICS[0]], sent=[BEGAN_AT])
    assert (spread(delays_ms(empty.hearings())), measure.share_beyond(empty)) == (None, None)
    assert count_lost(empty.hearings()) == 1


def test_the_ratio_is_to_the_mean_of_both_halves() -> None:
    records = make_trio(Uplink.WIMAX, "biased90", {2.0: 6})
    delays = MeanDelays(records)
    spec = MoralesSpec(Uplink.WIMAX, "biased90", HOT)
    assert delays.naive(spec) == pytest.approx(1 + 41.4 / 2)
    assert delays.ratio(spec) == pytest.approx((1 + 0.06 * 41.4) / (1 + 41.4 / 2))
    one_half = MeanDelays(records[:-1])
    assert (one_half.naive(spec), one_half.ratio(spec)) == (None, None)


def test_names_of_points() -> None:
    assert measure.point_name(MoralesSpec(Uplink.LTE, "burst-long", Algorithm(20.0))) == "burst/20s"
    assert measure.point_name(MoralesSpec(Uplink.LTE, "burst-short", Algorithm(0.1))) == "burst/100ms"
    assert measure.point_name(MoralesSpec(Uplink.LTE, "biased30", HOT)) == "biased30"


def test_the_farm_loses_nothing_that_waits() -> None:
    farm = make_farm()
    assert list(measure.missing(farm)) == []
    assert (measure.doubled(farm), measure.repeated(farm)) == (0, 0)
    assert measure.delivered(farm) == 2 * (100 + 100 + 69) + 3 * 40
    waits = list(measure.waits(farm))
    assert len(waits) == 2 * 31
    assert {subscriber for subscriber, _, _ in waits} == {"irrigation"}
    assert max(seconds for _, _, seconds in waits) == pytest.approx(4.05)


def test_what_a_subscriber_lacks_of_the_farm_counts_from_when_it_was_there() -> None:
    farm = make_farm()
    for arrivals in farm.arrived.values():
        arrivals[:] = [each for each in arrivals if each[:2] not in {("soil", 40), ("soil", 70)}]
    assert sorted(measure.missing(farm)) == [
        ("irrigation", "soil", 40),
        ("irrigation", "soil", 70),
        ("office", "soil", 40),
        ("office", "soil", 70),
        ("sprayer", "soil", 70),
    ]


def test_the_farms_repetitions_are_not_doubled() -> None:
    farm = make_farm()
    publisher, number, at, _ = farm.arrived["office"][0]
    farm.arrived["office"][0] = Received(publisher, number, at, is_repeated=True)  # had not come before
    assert (measure.doubled(farm), measure.repeated(farm)) == (0, 0)
    farm.arrived["office"].append(Received("soil", 40, BEGAN_AT + 9, is_repeated=True))
    assert (measure.doubled(farm), measure.repeated(farm)) == (0, 1)
    farm.arrived["office"].append(Received("temperature", 10, BEGAN_AT + 9))
    assert measure.doubled(farm) == 1


def test_datagrams_out_of_coverage_are_nobodys_loss() -> None:
    farm = make_farm()
    assert measure.farm_heard(farm, "office") == 100
    gone = {("temperature", 1), ("temperature", 55)}  # in coverage, and while irrigation had to catch up
    farm.arrived["office"] = [each for each in farm.arrived["office"] if each[:2] not in gone]
    assert measure.farm_heard(farm, "office") == pytest.approx(100 * 57 / 58)
    farm.datagrams.clear()
    assert measure.farm_heard(farm, "office") is None
