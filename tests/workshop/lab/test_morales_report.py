"""Rows, bars, notes and the report, from records that never were."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.harness.experiment import Request
from hedgerow_workshop.lab.harness.record import Arrival
from hedgerow_workshop.lab.morales import experiment, report
from hedgerow_workshop.lab.morales.measure import MeanDelays
from hedgerow_workshop.lab.morales.record import MoralesRecord, Outcome
from hedgerow_workshop.lab.morales.report import BARS
from hedgerow_workshop.lab.morales.rows import make_notes, make_rows
from hedgerow_workshop.lab.morales.setting import Uplink
from tests.workshop.lab.morales_records import make_farm, make_mixed, make_outcome, make_records, make_trio

MAIN_ROWS = [
    "ratio/biased90/lte", "ratio/biased90/wimax", "ratio/random/lte", "ratio/burst/best", "ratio/burst/20s",
    "lost", "doubled",
    "farm/lost", "farm/doubled", "farm/delivered", "farm/waited", "farm/waited/longest", "farm/heard",
    *(
        f"{scene}/{name}"
        for scene in ("handover", "plug-in", "domain", "second")
        for name in ("lost", "doubled", "repeated", "disordered", "delivered", "waited/longest", "moved")
    ),
    "mobile/cpu-ratio", "mobile/cpu/on", "mobile/cpu/off",
    "mobile/memory-ratio", "mobile/memory-ratio/all",
    "mobile/memory/before", "mobile/memory/on", "mobile/memory/off",
    "filter/bytes-ratio/10", "filter/bytes-ratio/100", "filter/bytes-ratio",
    "score/window", "score/published",
]  # fmt: skip


@pytest.fixture
def records() -> list[MoralesRecord]:
    return make_records()


def lte(beyond: float) -> float:
    """The ratio with so many percent at the fixed broker."""
    return (1 + beyond / 100 * 30.24) / (1 + 30.24 / 2)


def wimax(beyond: float) -> float:
    return (1 + beyond / 100 * 41.4) / (1 + 41.4 / 2)


def test_rows_have_their_names(records: list[MoralesRecord]) -> None:
    rows = {row.name: row.ours for row in make_rows(Outcome(records, make_farm()))}
    assert list(rows)[: len(MAIN_ROWS)] == MAIN_ROWS
    assert rows["ratio/biased90/lte"] == pytest.approx(lte(6))
    assert rows["ratio/biased90/wimax"] == pytest.approx(wimax(6))
    assert rows["ratio/random/lte"] == pytest.approx(1)
    # The best of LTE is 20 %, of WiMAX 25 %: the worse of both counts.
    assert rows["ratio/burst/best"] == pytest.approx(wimax(25))
    assert rows["ratio/burst/20s"] == pytest.approx(wimax(46))
    assert (rows["lost"], rows["doubled"]) == (0, 0)
    assert (rows["farm/lost"], rows["farm/doubled"], rows["farm/delivered"]) == (0, 0, 658)
    assert (rows["farm/waited"], rows["farm/heard"]) == (62, 100)
    assert rows["farm/waited/longest"] == pytest.approx(4.05)
    assert rows["ratio/burst/1s/lte"] == pytest.approx(lte(20))
    assert rows["delay/burst/20s/wimax/hot"] == pytest.approx(1 + 0.46 * 41.4)
    assert rows["delay/burst/20s/wimax/naive"] == pytest.approx(1 + 41.4 / 2)
    assert rows["delay/biased10/lte/hot"] == pytest.approx(1 + 0.45 * 30.24)
    assert len(rows) == len(make_rows(Outcome(records, make_farm())))


def test_what_was_not_run_is_none() -> None:
    rows = make_rows(Outcome())
    assert [row.name for row in rows] == MAIN_ROWS
    assert {row.ours for row in rows} == {None}
    assert list(BARS.missed(rows)) == []
    assert BARS.keys() <= set(MAIN_ROWS)


def test_bars_that_are_missed_are_told(records: list[MoralesRecord]) -> None:
    rows = make_rows(Outcome(records, make_farm()))
    assert list(BARS.missed(rows)) == []
    records = [record for record in records if record.spec.traffic not in ("random", "biased90")]
    records += make_trio(Uplink.LTE, "random", {2.0: 40})
    records += make_trio(Uplink.WIMAX, "biased90", {2.0: 30})
    records[0].arrived.pop()
    rows = make_rows(Outcome(records, make_farm()))
    assert list(BARS.missed(rows)) == [
        "ratio/biased90/wimax misses its bar: it is 0.618 ×, and should be ≤ 0.25.",
        "ratio/random/lte misses its bar: it is 0.812 ×, and should be 0.95 … 1.05.",
        "lost misses its bar: it is 1.00 messages, and should be ≤ 0.",
    ]
    lines = {line[0]: line[-2:] for line in BARS.lines(rows)}
    assert lines["ratio/biased90/wimax"] == ["≤ 0.25", "MISSED"]
    assert lines["ratio/burst/20s"] == ["0.9 … 1.1", "met"]
    assert lines["ratio/biased90/lte"] == ["≤ 0.25", ""]
    assert lines["farm/heard"] == ["", ""]


def test_notes(records: list[MoralesRecord]) -> None:
    records[0].arrived.pop()
    assert list(make_notes(Outcome(records, make_farm()))) == [
        "lte random hot2s: 1 lost, 0 doubled.",
        "lte bursts: best with a window of 1s, 0.44 × naïve.",
        "wimax bursts: best with a window of 100ms, 0.52 × naïve.",
    ]


def test_a_naive_algorithm_that_delegates_nothing_is_told(records: list[MoralesRecord]) -> None:
    _, *naive = make_trio(Uplink.LTE, "random", {2.0: 50})
    for record in naive:
        record.arrived = [
            Arrival(number, record.sent[number] + 0.001, is_repeated)
            for number, _, is_repeated in record.arrived
        ]
    assert list(make_notes(Outcome(naive))) == [
        "lte random: the naïve algorithm had 0 % at the fixed broker, not half."
    ]


def test_rows_of_the_scenes() -> None:
    rows = {row.name: row.ours for row in make_rows(make_outcome())}
    assert (rows["handover/lost"], rows["handover/doubled"], rows["handover/repeated"]) == (0, 0, 0)
    assert (rows["handover/delivered"], rows["handover/moved"]) == (200, 1)
    assert rows["handover/waited/longest"] == pytest.approx(0.5)
    # Of both runs, and one of them has not moved.
    assert (rows["domain/lost"], rows["domain/doubled"], rows["domain/moved"]) == (3, 1, 0)
    assert (rows["second/lost"], rows["second/repeated"], rows["second/disordered"]) == (0, 1, 1)
    assert rows["plug-in/lost"] is None


def test_rows_of_costs() -> None:
    rows = {row.name: row.ours for row in make_rows(make_outcome())}
    assert (rows["mobile/cpu-ratio"], rows["mobile/cpu/on"], rows["mobile/cpu/off"]) == (0.5, 0.1, 0.2)
    assert rows["mobile/memory-ratio"] == 0.75
    assert rows["mobile/memory-ratio/all"] == pytest.approx(60 / 66)
    memory = rows["mobile/memory/before"], rows["mobile/memory/on"], rows["mobile/memory/off"]
    assert memory == (46, 60, 66)
    assert (rows["filter/bytes-ratio"], rows["filter/bytes-ratio/10"]) == (0.25, None)


def test_what_has_not_moved_is_told() -> None:
    outcome = make_outcome()
    assert list(make_notes(Outcome(scenes=outcome.scenes, processor=outcome.processor))) == [
        "second: 1 deliveries were MQTT's own repetitions on a new connection (DUP).",
        "domain-unstored: not everyone who was to move has moved.",
        "mobile/cpu: not every client of what is cold was at the fixed broker.",
    ]
    missed = list(BARS.missed(make_rows(outcome)))
    assert "domain/lost misses its bar: it is 3.00 messages, and should be ≤ 0." in missed
    assert "domain/moved misses its bar: it is 0, and should be = 1." in missed
    assert "mobile/memory-ratio misses its bar: it is 0.75 ×, and should be ≤ 0.7." in missed
    assert not any(note.startswith(("mobile/cpu", "filter/", "handover/")) for note in missed)


def test_the_two_scores_are_compared() -> None:
    records = make_trio(Uplink.LTE, "burst-short", {0.2: 20})
    records += make_trio(Uplink.LTE, "burst-short", {0.2: 45}, score="published")[:1]
    outcome = Outcome(records)
    rows = {row.name: row.ours for row in make_rows(outcome)}
    assert rows["score/window"] == rows["ratio/burst/200ms/lte"] == pytest.approx(lte(20))
    assert rows["score/published"] == rows["ratio/burst/200ms/published/lte"] == pytest.approx(lte(45))
    assert list(make_notes(outcome)) == ["lte bursts: best with a window of 200ms, 0.44 × naïve."]
    delays = MeanDelays(records)
    assert report.score_lines(delays)[1:] == [["burst/200ms", "7.05", "14.6", "16.1"]]
    assert [len(curve.points) for curve in report.figure10(delays)] == [1, 1]


def test_mixed_bursts_have_a_row_for_each_kind() -> None:
    rows = {row.name: row.ours for row in make_rows(Outcome(make_mixed()))}
    assert rows["ratio/mixed/random/lte"] == pytest.approx(lte(100) / lte(50))
    assert rows["ratio/mixed/biased/lte"] == pytest.approx(lte(0) / lte(50))
    assert (rows["lost"], rows["doubled"]) == (0, 0)


def test_scenes_and_costs_have_their_lines() -> None:
    outcome = make_outcome()
    assert report.scene_lines(outcome.scenes["second"])[1:] == [["panel", "100", "0", "0", "1", "0.5", "2"]]
    assert report.cost_lines(outcome)[1:] == [
        ["ms an event", "0.1", "0.2", "0.5"],
        ["MiB that the subscriptions take", "15.0", "20.0", "0.75"],
        ["MiB in all", "60.0", "66.0", "0.909"],
        ["bytes, 1,000 subscribers of each of 50 topics (off: full lists)", "250", "1,000", "0.25"],
    ]


def test_the_figures_have_the_documents_curves(records: list[MoralesRecord]) -> None:
    delays = MeanDelays(records)
    labels = ["N-LTE", "N-WiMAX", "HT-LTE", "HT-WiMAX"]
    biased = {curve.label: [x for x, _ in curve.points] for curve in report.figure9(delays)}
    assert biased == {label: [10, 90] for label in labels}
    bursts = {curve.label: curve.points for curve in report.figure10(delays)}
    assert list(bursts) == labels
    assert [x for x, _ in bursts["HT-LTE"]] == [0.1, 1, 20]
    assert dict(bursts["HT-LTE"])[20.0] == pytest.approx(1 + 0.49 * 30.24)
    assert dict(bursts["N-WiMAX"]) == pytest.approx({0.1: 21.7, 20.0: 21.7})


def test_the_farms_outages_have_their_lines() -> None:
    assert report.farm_lines(make_farm()) == [
        [
            "out of coverage",
            "seconds",
            "waited for office",
            "waited for irrigation",
            "waited for sprayer",
            "longest, s",
        ],
        ["field", "3.10", "0", "62", "0", "4.05"],
    ]


def test_the_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    outcome = make_outcome()
    rows = make_rows(outcome)
    page = report.write_report(tmp_path, outcome, rows, ["a note <here>"])
    text = page.read_text()
    assert page.name == "report.html"
    assert "ratio/biased90/lte" in text
    assert "a note &lt;here&gt;" in text
    assert "lte burst-long hot20s" in text
    for heading in ("The two scores", "The farm", "handover", "domain-stored", "second"):
        assert f"<h2>{heading}</h2>" in text
    pictures = re.findall(r'src="([^"]+)"', text)
    assert pictures == ["figure9.png", "figure10.png"]
    for picture in pictures:
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert not re.search(r"https?://|<script", text)  # nothing from elsewhere


def test_a_report_of_runs_that_heard_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    records = make_trio(Uplink.LTE, "random", {2.0: 50})
    for record in records:
        record.arrived.clear()
    outcome = Outcome(records, make_farm())
    assert report.write_report(tmp_path, outcome, make_rows(outcome), []).exists()
    assert report.run_lines(records)[1] == ["lte random hot2s", "100", "–", "–", "–"]


def test_records_are_written_as_json(records: list[MoralesRecord], tmp_path: Path) -> None:
    assert len({record.spec.file_name for record in records}) == len(records)
    records[-1].write(tmp_path / "x.json")
    document = json.loads((tmp_path / "x.json").read_text())
    assert document["spec"]["algorithm"] == {"window_s": None, "half": 1, "score": "window"}
    assert len(document["sent"]) == len(document["topics"]) == 120
    make_farm().write(tmp_path / "farm.json")
    assert json.loads((tmp_path / "farm.json").read_text())["outages"][0][0] == "field"


def test_the_full_plan_has_what_the_rows_need() -> None:
    planned = [
        (batch.uplink, traffic.name, str(algorithm))
        for batch in experiment.choose_batches(fast=False)
        for traffic in batch.traffics
        for algorithm in batch.algorithms
    ]
    assert len(planned) == len(set(planned))
    for uplink in Uplink:
        for traffic in ("random", "mixed", *(f"biased{share}" for share in range(10, 100, 10))):
            for algorithm in ("hot2s", "naive0", "naive1"):
                assert (uplink, traffic, algorithm) in planned
            assert (Uplink.LTE, traffic, "hot2s-published") in planned
        assert (Uplink.LTE, "burst-short", "hot200ms-published") in planned
        windows = {algorithm for each, traffic, algorithm in planned if each is uplink and "burst" in traffic}
        assert {"hot100ms", "hot2s", "hot20s", "naive0", "naive1"} <= windows


@pytest.mark.parametrize(("fast", "most_s"), [(True, 50), (False, 720)])
def test_a_run_takes_no_longer_than_promised(fast: bool, most_s: float) -> None:
    """Of publishing alone; brokers start and the farm is visited besides."""
    took_s = 0.0
    for batch in experiment.choose_batches(fast):
        took_s += sum(traffic.draw()[0][-1].at_s for traffic in batch.traffics)
    assert took_s < most_s


def test_every_part_is_carried_out_once() -> None:
    carried_out = [name for group in experiment.GROUPS for name in group]
    assert sorted(carried_out) == sorted(experiment.PARTS)


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(ConfigError, match='no part "line"; there are farm, scenes, costs, traffic$'):
        experiment.run(Request(parts=["costs", "line"]))


def test_wrong_requests_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither --timeline nor --broker"):
        experiment.run(Request(timeline=tmp_path))
    with pytest.raises(ConfigError, match="neither --timeline nor --broker"):
        experiment.run(Request(broker="mosquitto"))
