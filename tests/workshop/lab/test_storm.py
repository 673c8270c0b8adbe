"""The storm's traffic, what is counted of a run, and the rows that it becomes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow.hot.hot_topics import HotTopics
from hedgerow_workshop.lab.harness.experiment import Request
from hedgerow_workshop.lab.harness.measure import delays_ms
from hedgerow_workshop.lab.storm import experiment, measure, report
from hedgerow_workshop.lab.storm.measure import KindCounts
from hedgerow_workshop.lab.storm.record import (
    StormFault,
    StormRecord,
    SubscriberKind,
    Tally,
    read_tallies,
    write_tallies,
)
from hedgerow_workshop.lab.storm.settings import (
    CALM,
    FAST,
    STORM,
    TOPICS,
    StormSettings,
    places,
    publications,
)


@pytest.mark.parametrize("settings", [FAST, StormSettings(seconds=10)], ids=["fast", "full"])
@pytest.mark.parametrize("late_s", [0.0, 0.08])
def test_the_storms_topic_changes_sides_with_every_x_time(settings: StormSettings, late_s: float) -> None:
    hot = HotTopics(settings.x_s, settings.x_s)
    chance = random.Random(3)
    sides = [False]
    for number, (at, topic) in enumerate(publications(settings)):
        hot.note(topic, 10 + at + (late_s * chance.random() if number else 0.0))
        is_delegated = not hot.keeps(STORM)
        if is_delegated != sides[-1]:
            sides.append(is_delegated)
    assert len(sides) - 1 >= settings.seconds / settings.x_s - 3


def test_publications_are_as_many_as_asked_for() -> None:
    settings = StormSettings(seconds=2)
    found = list(publications(settings))
    counts = Counter(topic for _, topic in found)
    assert len(found) == 2_000
    assert counts[STORM] == 40
    assert set(counts) == set(TOPICS)
    assert [at for at, _ in found] == sorted(at for at, _ in found)
    assert found[-1][0] < 2


def test_subscribers_of_each_kind_are_on_either_side() -> None:
    of_kinds = places(StormSettings(), 4)
    assert [len(topics) for topics in of_kinds] == [50] * 4
    assert [topics.count(STORM) for topics in of_kinds] == [47] * 4
    assert [len(topics) for topics in places(replace(FAST, subscribers=10), 4)] == [3, 3, 2, 2]
    assert {topic for topics in places(FAST, 4) for topic in topics} == set(TOPICS)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"storm_rate": 5.0}, "--storm-rate 5 is less than 7.5"),
        ({"rate": 100.0}, "--rate 100 leaves the calm topics too little"),
        ({"share": 1.5}, "--share 1.5 is not between 0 and 1"),
        ({"subscribers": 4}, "--subscribers 4 is less than 8"),
        ({"seconds": 0.5}, "--seconds 0.5: it takes 0.8"),
    ],
)
def test_a_storm_that_would_not_flip_is_refused(changes: dict[str, float], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        experiment.run(Request(settings=changes))


def test_what_it_does_not_take_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="storm takes no --timeline"):
        experiment.run(Request(timeline=tmp_path))
    with pytest.raises(ConfigError, match="storm takes no --broker"):
        experiment.run(Request(broker="mosquitto"))


def test_settings_are_taken_from_the_request() -> None:
    settings = experiment.make_settings(Request(fast=True, settings={"subscribers": 12, "durable": True}))
    assert settings == replace(FAST, subscribers=12, durable=True)


def _tally(
    kind: SubscriberKind, *numbers: int, repeated: tuple[int, ...] = (), connections: int = 1
) -> Tally:
    tally = Tally(f"{kind}-0", kind, STORM)
    for place, number in enumerate(numbers):
        tally.receive(b"%d   " % number, number in repeated and number in numbers[:place], 10.0 + place)
    tally.connections = [(float(number), "mqtt://h") for number in range(connections)]
    return tally


@pytest.fixture
def record() -> StormRecord:
    return StormRecord(
        StormFault.KILLED,
        {STORM: [9.0, 9.5, 10.0], **{topic: [] for topic in CALM}},
        [
            _tally(SubscriberKind.EXTENSION, 0, 1, 2),
            _tally(SubscriberKind.PAHO_5, 0, 2, 2, 2, 0, repeated=(0,), connections=4),
            _tally(SubscriberKind.PAHO_5, 2),
        ],
        flips=[(9.2, True), (9.6, False)],
        happened=[(9.4, "killed")],
        began_at=9.0,
    )


def test_lost_and_doubled_are_counted_for_each_kind(record: StormRecord) -> None:
    assert measure.count(record, SubscriberKind.EXTENSION) == KindCounts(3, 0, 0, 0, 0)
    assert measure.count(record, SubscriberKind.PAHO_5) == KindCounts(6, 3, 3, 1, 3)
    assert measure.count(record, SubscriberKind.GMQTT_5) is None
    assert sorted(delays_ms(measure.of_kind(record, SubscriberKind.EXTENSION))) == [1_000, 1_500, 2_000]
    assert sorted(delays_ms(measure.of_kind(record, SubscriberKind.PAHO_5))) == [0, 1_000, 1_000]


def test_incidents_are_named(record: StormRecord) -> None:
    assert sorted(measure.incidents(record)) == [
        (0.0, "paho5-0: lab/storm 0 came 2 times, at 1.000, 5.000 s"),
        (0.0, "paho5-0: lab/storm 0 lost"),
        (0.5, "paho5-0: lab/storm 1 lost"),
        (0.5, "paho5-0: lab/storm 1 lost"),
        (1.0, "paho5-0: lab/storm 2 came 3 times, at 2.000, 3.000, 4.000 s"),
    ]


def test_rows_have_the_fault_at_their_ends(record: StormRecord) -> None:
    rows = {row.name: row.ours for row in experiment.make_rows([StormRecord(StormFault.NONE), record])}
    assert len(rows) == 2 * 17
    assert rows["lost/paho5"] is rows["moves/extension"] is None
    assert rows["lost/paho5/killed"] == rows["doubled/paho5/killed"] == rows["moves/paho5/killed"] == 3
    assert rows["repeated/paho5/killed"] == 1
    assert rows["lost/extension/killed"] == 0
    assert rows["flips/killed"] == 2
    assert rows["flips"] == 0


def test_notes_tell_the_first_of_what_went_wrong(record: StormRecord) -> None:
    record.busy = {"broker mobile": 0.625}
    record.tracebacks = ["broker fixed"]
    assert list(experiment.make_notes([record], max_incidents=2)) == [
        "killed: of one processor took broker mobile 62 %.",
        "killed: broker fixed wrote a traceback.",
        "killed: paho5-0: lab/storm 0 came 2 times, at 1.000, 5.000 s (published at 0.000 s).",
        "killed: paho5-0: lab/storm 0 lost (published at 0.000 s).",
        "killed: … 3 more.",
    ]


def test_the_report_has_what_happened_in_order(record: StormRecord, tmp_path: Path) -> None:
    assert report.incident_lines(record)[1:4] == [
        ["paho5-0: lab/storm 0 came 2 times, at 1.000, 5.000 s", "0.000"],
        ["paho5-0: lab/storm 0 lost", "0.000"],
        ["killed", "0.400"],
    ]
    rows = list(experiment.make_rows([record]))
    text = report.write_report(tmp_path, [record], rows, ["A note."]).read_text()
    assert "lost/paho5/killed" in text
    assert "A note." in text
    assert "<td>extension, killed</td><td>1,500</td><td>2,000</td><td>2,000</td>" in text


def test_tallies_are_written_and_read(record: StormRecord, tmp_path: Path) -> None:
    write_tallies(tmp_path / "tallies.json", record.tallies)
    read = read_tallies(tmp_path / "tallies.json")
    assert [(tally.kind, tally.numbers, tally.repeated) for tally in read] == [
        (tally.kind, tally.numbers, tally.repeated) for tally in record.tallies
    ]
    assert read[1].distinct == 2
    record.write(tmp_path / "record.json")
    assert '"fault": "killed"' in (tmp_path / "record.json").read_text()
