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
from hedgerow_workshop.lab.morales.record import MoralesRecord
from hedgerow_workshop.lab.morales.report import BARS
from hedgerow_workshop.lab.morales.setting import Uplink
from tests.workshop.lab.morales_records import make_farm, make_records, make_trio

MAIN_ROWS = [
    "ratio/biased90/lte", "ratio/biased90/wimax", "ratio/random/lte", "ratio/burst/best", "ratio/burst/20s",
    "lost", "doubled",
    "farm/lost", "farm/doubled", "farm/delivered", "farm/waited", "farm/waited/longest", "farm/heard",
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
    rows = {row.name: row.ours for row in experiment.make_rows(records, make_farm())}
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
    assert len(rows) == len(experiment.make_rows(records, make_farm()))


def test_what_was_not_run_is_none() -> None:
    rows = experiment.make_rows([], None)
    assert [row.name for row in rows] == MAIN_ROWS
    assert {row.ours for row in rows} == {None}
    assert list(BARS.missed(rows)) == []
    assert BARS.keys() <= set(MAIN_ROWS)


def test_bars_that_are_missed_are_told(records: list[MoralesRecord]) -> None:
    rows = experiment.make_rows(records, make_farm())
    assert list(BARS.missed(rows)) == []
    records = [record for record in records if record.spec.traffic not in ("random", "biased90")]
    records += make_trio(Uplink.LTE, "random", {2.0: 40})
    records += make_trio(Uplink.WIMAX, "biased90", {2.0: 30})
    records[0].arrived.pop()
    rows = experiment.make_rows(records, make_farm())
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
    assert list(experiment.make_notes(records, make_farm())) == [
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
    assert list(experiment.make_notes(naive, None)) == [
        "lte random: the naïve algorithm had 0 % at the fixed broker, not half."
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


def test_the_report(records: list[MoralesRecord], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    farm = make_farm()
    rows = experiment.make_rows(records, farm)
    page = report.write_report(tmp_path, records, farm, rows, ["a note <here>"])
    text = page.read_text()
    assert page.name == "report.html"
    assert "ratio/biased90/lte" in text
    assert "a note &lt;here&gt;" in text
    assert "lte burst-long hot20s" in text
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
    rows = experiment.make_rows(records, make_farm())
    assert report.write_report(tmp_path, records, make_farm(), rows, []).exists()
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
        for traffic in ("random", *(f"biased{share}" for share in range(10, 100, 10))):
            for algorithm in ("hot2s", "naive0", "naive1"):
                assert (uplink, traffic, algorithm) in planned
        windows = {algorithm for each, traffic, algorithm in planned if each is uplink and "burst" in traffic}
        assert {"hot100ms", "hot2s", "hot20s", "naive0", "naive1"} <= windows


@pytest.mark.parametrize(("fast", "most_s"), [(True, 40), (False, 660)])
def test_a_run_takes_no_longer_than_promised(fast: bool, most_s: float) -> None:
    """Of publishing alone; brokers start and the farm is visited besides."""
    took_s = 0.0
    for batch in experiment.choose_batches(fast):
        took_s += sum(traffic.draw()[0][-1].at_s for traffic in batch.traffics)
    assert took_s < most_s


def test_wrong_requests_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither --timeline nor --broker"):
        experiment.run(Request(timeline=tmp_path))
    with pytest.raises(ConfigError, match="neither --timeline nor --broker"):
        experiment.run(Request(broker="mosquitto"))
