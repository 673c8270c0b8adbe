"""The machine that watches one sensor: what it finds in a month with known faults, and each kind alone."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import inf, isnan, sin

import pytest

from hedgerow.pipeline.watch import (
    IMPOSSIBLE,
    JUMP,
    SECOND,
    SILENCE,
    SPIKE,
    STUCK,
    UNUSUAL,
    Anomaly,
    SensorWatch,
    WatchSettings,
)
from hedgerow.pipeline.watch_rules import settings_for
from hedgerow.pipeline.watch_words import explain_anomaly
from tests.pipeline.labelled import Fault, Labelled, labelled_set

MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
AFTER = 20 * MINUTE
"""What is told so soon after a fault is told of its end."""
AT = 1_780_000_000 * SECOND // DAY * DAY


def found_in(
    values: list[float],
    settings: WatchSettings | None = None,
    step: int = 2 * MINUTE,
    unit: str | None = None,
) -> list[Anomaly]:
    watch = SensorWatch(settings or settings_for((), "s", "f", unit))
    return [found for number, value in enumerate(values) for found in watch.take(AT + number * step, value)]


def restless(count: int, seed: int = 3) -> list[float]:
    """About 20, in steps of 0.1."""
    chance = random.Random(seed)
    return [round(20 + chance.gauss(0, 0.3), 1) for _ in range(count)]


def kinds(found: list[Anomaly]) -> list[str]:
    return [each.kind for each in found]


@pytest.mark.parametrize("seed", [1, 4])
def test_a_month_of_twenty_sensors_with_planted_faults(seed: int) -> None:
    planted, seen = Counter[str](), Counter[str]()
    told = right = 0
    for sensor in labelled_set(seed):
        watch = SensorWatch(settings_for((), sensor.sensor, sensor.field, sensor.unit))
        found = [one for at, value in readings_of(sensor) for one in watch.take(at, value)]
        told += len(found)
        right += sum(any(meets(one, fault) for fault in sensor.faults) for one in found)
        for fault in sensor.faults:
            planted[fault.kind] += 1
            seen[fault.kind] += any(one.kind == fault.kind and meets(one, fault) for one in found)
    recall = {kind: seen[kind] / planted[kind] for kind in (STUCK, SPIKE, IMPOSSIBLE, SILENCE)}
    print(f"seed {seed}: recall {recall}, precision {right / told:.3f} of {told} rows")
    assert min(recall.values()) >= 0.9
    assert right / told >= 0.8
    assert told < 1_500  # of 430,000 readings


def readings_of(sensor: Labelled) -> list[tuple[int, float]]:
    return list(zip(sensor.at.tolist(), sensor.values.tolist(), strict=True))


def meets(found: Anomaly, fault: Fault) -> bool:
    return found.at <= fault.end_at + AFTER and found.until >= fault.start_at


def test_one_that_is_stuck_is_told_when_it_is_noticed_and_when_it_is_over() -> None:
    values = restless(300) + [-1.0] * 4_613 + restless(50)
    began, ended = (one for one in found_in(values) if one.kind == STUCK)
    assert (began.is_over, ended.is_over) == (False, True)
    assert began.at == ended.at == AT + 300 * 2 * MINUTE
    assert began.until - began.at <= 30 * MINUTE
    assert (ended.readings, ended.until - ended.at) == (4_613, 4_613 * 2 * MINUTE)
    assert explain_anomaly(ended, "°C").startswith("-1 °C for 6.41 d, 4613 times in a row; the longest run")


def test_one_that_never_moved_is_told_after_a_day_and_a_switch_is_not() -> None:
    (only,) = found_in([21.0] * 1_000)
    assert only.kind == STUCK
    assert only.until - only.at == DAY
    assert found_in([1.0] * 1_000) == found_in([0.0] * 5_000 + [1.0] * 5_000) == []


def test_a_value_at_which_it_rests_each_night_is_learned() -> None:
    day = [round(400 * max(0.0, sin(number / 720 * 6.2832)), 1) for number in range(720)]
    assert [one for one in found_in(day * 10) if one.kind == STUCK] == []


def test_a_value_may_be_said_to_rest() -> None:
    values = restless(300) + [5.0] * 300 + [20.0]
    assert STUCK in kinds(found_in(values))
    assert STUCK not in kinds(found_in(values, WatchSettings(rests=(5.0,))))
    assert STUCK not in kinds(found_in(values, WatchSettings(stuck_s=DAY / SECOND)))
    assert STUCK not in kinds(found_in(values, WatchSettings(stuck_readings=400)))


def test_a_spike_comes_back_and_a_jump_stays() -> None:
    usual = restless(400)
    (spike,) = found_in([*usual[:300], 35.0, 31.0, *usual[300:]])
    assert (spike.kind, spike.readings, spike.value, spike.is_over) == (SPIKE, 2, 35.0, True)
    assert spike.expected == pytest.approx(20, abs=0.5)
    words = explain_anomaly(spike, "°C")
    assert words.startswith("35 °C after 19.6 °C; a step of 2.4")
    assert words.endswith(", and back after 2 readings")
    (jump,) = found_in([*usual[:300], *(value + 9 for value in usual[300:])])
    assert (jump.kind, jump.at) == (JUMP, AT + 300 * 2 * MINUTE)


def test_a_direction_is_compared_the_shorter_way_round() -> None:
    chance = random.Random(5)
    north = [round(chance.gauss(0, 8)) % 360 for _ in range(3_000)]
    assert max(abs(one - other) for one, other in pairwise(north)) > 300
    assert found_in(list(map(float, north)), unit="°") == []
    (spike,) = found_in([*map(float, north[:500]), 180.0, *map(float, north[500:1_000])], unit="°")
    assert spike.kind == SPIKE
    assert min(spike.expected, 360 - spike.expected) < 20
    # As a line it has a bound that no spike is beyond.
    assert SPIKE not in kinds(found_in([*map(float, north[:500]), 180.0, 1.0]))


def test_what_cannot_be_is_told_once_with_how_often() -> None:
    (began, ended) = found_in([*restless(100), *[-999.0] * 40, *restless(100, 4)], unit="°C")
    assert (began.kind, began.readings, began.is_over) == (IMPOSSIBLE, 1, False)
    assert (ended.kind, ended.readings, ended.is_over) == (IMPOSSIBLE, 40, True)
    assert explain_anomaly(ended, "°C") == "-999 °C is below -90 °C, 40 times in 80 min"
    # Without a unit: what devices send for no value, where nothing near it ever was.
    (began, _) = found_in([*restless(100), 9999.0, *restless(100, 4)])
    assert isnan(began.bound)
    assert explain_anomaly(began, None) == "9999 is what devices send for no value"
    assert found_in([9990.0 + number % 20 for number in range(200)]) == []


def test_silence_is_measured_by_its_own_pauses() -> None:
    watch = SensorWatch(WatchSettings())
    at = AT
    for value in restless(200):
        at += 2 * MINUTE
        assert watch.take(at, value, heard_at=at + SECOND) == ()
    due_at = watch.overdue_at()
    assert due_at is not None
    assert 5 * MINUTE < due_at - at < 15 * MINUTE
    assert watch.overdue(due_at) == ()
    (now,) = watch.overdue(due_at + SECOND)
    assert (now.kind, now.at, now.is_over) == (SILENCE, at, False)
    assert watch.overdue(due_at + DAY) == ()
    (after,) = watch.take(at + 3 * HOUR, 20.0, heard_at=at + 3 * HOUR)
    assert (after.kind, after.at, after.until, after.is_over) == (SILENCE, at, at + 3 * HOUR, True)
    assert explain_anomaly(after, None) == "nothing for 3 h; usually a reading comes every 2 min"


def test_of_a_history_it_is_not_known_whether_the_sensor_still_sends() -> None:
    watch = SensorWatch(WatchSettings())
    for number, value in enumerate(restless(200)):
        watch.take(AT + number * 2 * MINUTE, value, heard_at=AT + 30 * DAY)
    assert watch.overdue_at() is None


def test_one_that_sends_when_it_likes_is_not_silent() -> None:
    chance = random.Random(1)
    watch, at = SensorWatch(WatchSettings()), AT
    found: list[Anomaly] = []
    for value in restless(3_000):
        at += round(chance.expovariate(1 / 300) * SECOND) + 1
        found += watch.take(at, value)
    assert SILENCE not in kinds(found)


def test_what_is_usual_at_noon_is_not_at_night() -> None:
    chance = random.Random(2)

    def day(number: int) -> float:
        return round(15 + 8 * sin((number % 144) / 144 * 6.2832) + chance.gauss(0, 0.4), 1)

    values = [day(number) for number in range(144 * 10)]
    start = 144 * 8 + 100
    # It warms slowly to what it has at noon, and cools again.
    for number in range(60):
        values[start + number] = round(values[start + number] + min(number, 60 - number) * 0.4, 1)
    found = found_in(values, step=10 * MINUTE)
    assert set(kinds(found)) == {UNUSUAL}
    assert AT + start * 10 * MINUTE < found[0].at < AT + (start + 60) * 10 * MINUTE
    assert "is usual at this hour, give or take" in explain_anomaly(found[0], "°C")


@pytest.mark.parametrize(
    ("off", "values"),
    [
        (WatchSettings(is_stuck_told=False), [*restless(100), *[3.0] * 900]),
        (WatchSettings(is_spike_told=False), [*restless(100), 90.0, *restless(100)]),
        (WatchSettings(is_spike_told=False), [*restless(100), *[value + 30 for value in restless(100)]]),
    ],
)
def test_each_kind_can_be_left_out(off: WatchSettings, values: list[float]) -> None:
    assert set(kinds(found_in(values))) - set(kinds(found_in(values, off)))


def test_one_that_comes_late_is_compared_with_the_limits_alone() -> None:
    watch = SensorWatch(settings_for((), "s", "f", "%"))
    for number, value in enumerate(restless(100)):
        watch.take(AT + number * MINUTE, value)
    before = watch.pack()
    assert watch.take(AT + 90 * MINUTE, 90.0) == ()
    assert watch.pack() == before
    (only,) = watch.take(AT + 90 * MINUTE, 140.0)
    assert (only.kind, only.is_over) == (IMPOSSIBLE, True)


def test_what_was_packed_goes_on_as_if_it_had_not_been() -> None:
    for sensor in labelled_set(7)[::6]:
        settings = replace(settings_for((), sensor.sensor, sensor.field, sensor.unit), minimum=-inf)
        one, other = SensorWatch(settings), SensorWatch(settings)
        for number, (at, value) in enumerate(
            zip(sensor.at[:6_000].tolist(), sensor.values.tolist(), strict=False)
        ):
            if number % 37 == 0:
                other = SensorWatch.unpack(other.pack(), settings)
            assert list(map(repr, one.take(at, value))) == list(map(repr, other.take(at, value)))
        assert one.pack() == other.pack()
        assert len(one.pack()) < 650
