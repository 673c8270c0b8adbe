"""Rows, bars, notes and the report, from records that never were."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hedgerow_workshop.lab.harness.record import Received
from hedgerow_workshop.lab.harness.rows import Row
from hedgerow_workshop.lab.spohn import experiment, report
from hedgerow_workshop.lab.spohn.record import (
    Failure,
    Misfortune,
    Setting,
    SpohnRecord,
    SpohnSpec,
    Transmissions,
)
from hedgerow_workshop.lab.spohn.report import BARS
from tests.workshop.lab.spohn_records import BEGAN_AT, make_delays, make_failures

COUNTS = (5, 10)


@pytest.fixture
def records() -> list[SpohnRecord]:
    return [
        make_delays("mosquitto", 5, {"7": 0.0055, "2": 0.0215}),
        make_delays("mosquitto", 10, {"7": 0.0075, "2": 0.027}),
        make_failures("mosquitto"),
        make_delays("hedgerow", 5, {"7": 0.0055, "2": 0.0205}),
        make_delays("hedgerow", 10, {"7": 0.006, "2": 0.0215}),
        make_failures("hedgerow"),
        make_delays("hedgerow", 10, {"A": 0.021, "B": 0.022}, node="2"),
    ]


def test_rows_have_their_names_and_the_published_figures(records: list[SpohnRecord]) -> None:
    rows = {row.name: row for row in experiment.make_rows(records, COUNTS)}
    assert [name for name in rows if "centralised" not in name] == [
        "delay/node7/mosquitto", "delay/node7/mosquitto/5", "delay/node7/hedgerow", "delay/node7/hedgerow/5",
        "delay/node2/mosquitto", "delay/node2/mosquitto/5", "delay/node2/hedgerow", "delay/node2/hedgerow/5",
        "lost", "doubled", "mesh", "distance/shortest", "document-wire/lost", "document-wire/doubled",
        "transmissions/mosquitto", "transmissions/mosquitto/redundant",
        "transmissions/hedgerow", "transmissions/hedgerow/redundant",
        "heal/kill", "heal/kill/slowest", "heal/cut", "heal/cut/slowest",
        "heal/kill/mosquitto", "heal/kill/slowest/mosquitto", "heal/cut/mosquitto",
        "heal/cut/slowest/mosquitto",
    ]  # fmt: skip
    assert len([name for name in rows if "centralised" in name]) == 2 * 2 * 2 * len(COUNTS)
    assert rows["delay/node7/hedgerow"].ours == pytest.approx(6)
    assert rows["delay/node7/hedgerow/5"].ours == pytest.approx(5.5)
    assert rows["delay/node2/mosquitto"].ours == pytest.approx(27)
    assert rows["delay/node2/mosquitto"].published == 34.77
    assert rows["delay/centralised/node2/B/hedgerow"].ours == pytest.approx(22)
    assert rows["delay/centralised/node2/B/hedgerow"].published == 42.58
    assert rows["delay/centralised/node7/A/mosquitto"] == Row(
        "delay/centralised/node7/A/mosquitto", "ms", None, 18.47
    )
    assert [rows[name].ours for name in ("lost", "doubled", "mesh")] == [0, 0, 1]
    assert rows["heal/kill"].ours == pytest.approx(220)
    assert rows["heal/cut/mosquitto"].ours == pytest.approx(1_520)


def test_transmissions_are_those_of_one_publication_of_the_longest_run(records: list[SpohnRecord]) -> None:
    records[4].transmissions = {"6-7": Transmissions(10, 0), "4-5": Transmissions(5, 5)}
    rows = {row.name: row.ours for row in experiment.make_rows(records, COUNTS)}
    assert rows["transmissions/hedgerow"] == 1.5
    assert rows["transmissions/hedgerow/redundant"] == 0.5
    assert rows["transmissions/mosquitto"] is None
    lines = report.transmission_lines(records[4])
    assert lines[1:] == [["4-5", "5", "5", "0.5"], ["6-7", "10", "0", "1.00"]]


def test_a_distance_that_is_not_the_shortest_misses_its_bar(records: list[SpohnRecord]) -> None:
    rows = {row.name: row.ours for row in experiment.make_rows(records, COUNTS)}
    assert rows["distance/shortest"] == 1
    records[4].states[0]["7"]["filters"]["grid/federated/10"]["distance"] = 4
    missed = list(BARS.missed(experiment.make_rows(records, COUNTS)))
    assert any(line.startswith("distance/shortest misses its bar") for line in missed)


def test_what_a_foreign_federator_lost_or_doubled_is_counted_apart(records: list[SpohnRecord]) -> None:
    mixed = SpohnRecord(SpohnSpec("hedgerow", Setting.DOCUMENT_WIRE, 2))
    mixed.sent = {"6": [1.0, 2.0], "4": [1.5, 2.5]}
    mixed.arrived = {"7": [Received("6", 0, 1.1), Received("6", 0, 1.2), Received("4", 0, 1.6)]}
    mixed.arrived["7"].append(Received("4", 1, 2.6))
    rows = {row.name: row.ours for row in experiment.make_rows([*records, mixed], COUNTS)}
    assert (rows["document-wire/lost"], rows["document-wire/doubled"]) == (1, 1)


def test_the_published_figures_are_those_of_as_many_publications() -> None:
    rows = {row.name: row.published for row in experiment.make_rows([], (500, 1_000))}
    assert (rows["delay/node7/mosquitto"], rows["delay/node7/mosquitto/500"]) == (18.61, 18.65)
    assert rows["delay/centralised/node7/B/mosquitto/500"] == 26.69


def test_what_was_not_run_is_none() -> None:
    rows = experiment.make_rows([], COUNTS)
    assert {row.ours for row in rows} == {None}
    assert list(BARS.missed(rows)) == []


def test_every_bar_is_of_a_row() -> None:
    assert BARS.keys() <= {row.name for row in experiment.make_rows([], COUNTS)}


def test_a_bar_that_was_missed_is_shown(records: list[SpohnRecord]) -> None:
    rows = experiment.make_rows(records, COUNTS)
    assert list(BARS.missed(rows)) == [
        "delay/node2/mosquitto misses its bar: it is 27.0 ms, and should be ≤ 26."
    ]
    lines = {line[0]: line[-2:] for line in BARS.lines(rows)}
    assert lines["delay/node2/mosquitto"] == ["≤ 26", "MISSED"]
    assert lines["delay/node2/hedgerow"] == ["≤ 22.5", "met"]
    assert lines["delay/node2/hedgerow/5"] == ["", ""]


def test_another_mesh_misses_its_bar_and_is_told(records: list[SpohnRecord]) -> None:
    state = records[4].states[1]["4"]
    state["filters"]["grid/federated/10"]["parents"] = ["1"]
    records[4].arrived["2"].pop()
    rows = experiment.make_rows(records, COUNTS)
    assert [row.ours for row in rows if row.name in ("lost", "mesh")] == [1, 0]
    missed = list(BARS.missed(rows))
    assert "mesh misses its bar: it is 0, and should be = 1." in missed
    assert "lost misses its bar: it is 1.00 messages, and should be ≤ 0." in missed
    notes = list(experiment.make_notes(records))
    assert "hedgerow federated: node 4 has the parents 1, not 1, 5." in notes
    assert "hedgerow federated: 1 lost, 0 doubled." in notes
    assert "hedgerow failures: the slowest of 1, cut 4-5 took 1520 ms to heal." in notes


def test_delays_stand_beside_the_published_ones_and_the_floor(records: list[SpohnRecord]) -> None:
    lines = report.delay_lines([*records, make_delays("mosquitto", 500, {"7": 0.006})])
    assert lines[-1] == ["mosquitto federated", "7", "500", "6.00 ± 0.00", "18.65 ± 3.20", "5.00"]
    assert ["hedgerow centralised node 2", "B", "10", "22.00 ± 0.00", "42.58 ± 4.48", "20.0"] in lines


def test_a_median_does_not_hide_the_slowest() -> None:
    record = make_failures("hedgerow")
    record.happened += [Failure(Misfortune.KILL, node, BEGAN_AT + 1.5) for node in ("5", "8")]
    record.happened.append(Failure(Misfortune.KILL, "1", BEGAN_AT + 3))
    rows = {row.name: row.ours for row in experiment.make_rows([record], COUNTS)}
    assert rows["heal/kill"] == pytest.approx(145)
    assert rows["heal/kill/slowest"] == pytest.approx(1_520)
    missed = list(BARS.missed(experiment.make_rows([record], COUNTS)))
    assert missed == ["heal/kill/slowest misses its bar: it is 1,520 ms, and should be ≤ 500."]


def test_every_failure_has_its_line() -> None:
    assert report.failure_lines(make_failures("hedgerow")) == [
        ["ms", "heal", "whole"], ["kill 4", "220", "1,500"], ["cut 4-5", "1,520", "–"],
    ]  # fmt: skip


def test_the_report(records: list[SpohnRecord], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    records[0].states = [{}, {}]  # nobody said anything: still a drawing
    rows = experiment.make_rows(records, COUNTS)
    page = report.write_report(tmp_path, records, rows, ["a note <here>"])
    text = page.read_text()
    assert page.name == "report.html"
    assert "delay/node7/hedgerow" in text
    assert "MISSED" in text
    assert "a note &lt;here&gt;" in text
    pictures = re.findall(r'src="([^"]+)"', text)
    assert len(pictures) == len(set(pictures)) == 3 * 4 + 2
    for picture in pictures:
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert not re.search(r"https?://|<script", text)  # nothing from elsewhere


def test_a_record_is_written_as_json(records: list[SpohnRecord], tmp_path: Path) -> None:
    assert len({record.spec.file_name for record in records}) == len(records)
    records[2].write(tmp_path / "x.json")
    document = json.loads((tmp_path / "x.json").read_text())
    assert document["spec"] == {"kind": "mosquitto", "setting": "failures", "count": 0, "node": ""}
    assert document["happened"][0][:2] == ["kill", "4"]
