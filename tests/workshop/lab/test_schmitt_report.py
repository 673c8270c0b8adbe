"""Rows, tables and the report, from records that never were."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hedgerow_workshop.lab.harness.experiment import Result, write_json
from hedgerow_workshop.lab.harness.record import Arrival
from hedgerow_workshop.lab.harness.rows import Row, number, row_cells, text_table
from hedgerow_workshop.lab.schmitt import experiment, report
from hedgerow_workshop.lab.schmitt.record import Departure, Mode, SchmittRecord, StepTaken
from hedgerow_workshop.lab.schmitt.timeline import Step, Timeline
from tests.workshop.lab.schmitt_records import BEGAN_AT, STEPS, event, make_record, state

TIMELINE = Timeline(
    run_s=10,
    fast_s={},
    settle_s=1,
    publish_interval_s=0.01,
    brokers=("1", "2", "5"),
    publisher="1",
    measured="2",
    steps=tuple(Step(name, at / 10, broker, does) for name, at, broker, does in STEPS),
)


@pytest.fixture
def records() -> list[SchmittRecord]:
    made = [
        make_record(Mode.STATIC, Departure.KILL, missing=range(200, 610)),
        make_record(Mode.GHOST, Departure.KILL, missing=range(200, 220)),
        make_record(Mode.PURE, Departure.KILL, missing=range(200, 205)),
        make_record(Mode.PUBLISHED, Departure.KILL, missing=range(420, 620)),
        make_record(Mode.LINE, Departure.KILL, missing=range(200, 210)),
        make_record(Mode.PURE, Departure.KILL, "mosquitto", missing=range(200, 215)),
        make_record(Mode.GHOST, Departure.CUT, missing=range(200, 380), missing_qos1=range(200, 380)),
        make_record(Mode.PURE, Departure.STOP, missing=range(200, 380)),
    ]
    made[1].agent = [event("broker_lost", 2.0, broker="5", silent_s=0.1)]
    made[1].bridges = [
        state(0.1, "1", "5", "up"),
        state(2.1, "1", "5", "waiting"),
        state(2.1, "1", "2", "up"),
    ]
    made[3].agent = [
        event("broker_lost", 2.25, broker="5", silent_s=0.1),
        event("command_sent", 2.3, action="create", broker="1", far="2", carrier="hedgerow"),
        event("broker_found", 6.1, broker="5"),
        event("command_sent", 6.2, action="delete", broker="1", far="2", carrier="hedgerow"),
        event("command_sent", 6.7, action="delete", broker="1", far="2", carrier="hedgerow"),
    ]
    made[3].bridges = [state(2.1, "1", "5", "waiting"), state(6.8, "1", "5", "up")]
    made[2].arrived["2"][1].append(Arrival(3, BEGAN_AT + 1))
    return made


def test_rows_have_their_names_and_are_those_of_killed_brokers_at_qos_0(records: list[SchmittRecord]) -> None:
    rows = {row.name: row for row in experiment.make_rows("hedgerow", records)}
    assert list(rows) == [
        "loss/static/qos0", "loss/ghost-published/qos0", "loss/ghost/qos0", "loss/pure/qos0",
        "loss/line/qos0", "loss/ghost-published/qos1", "loss/ghost/qos1", "loss/pure/qos1", "loss/line/qos1",
        "doubled", "heal/kill", "heal/cut", "alpha/t3", "beta/ghost-published", "gamma/ghost-published",
        "changes/ghost-published", "changes/ghost", "changes/pure", "mosquitto/loss/pure/qos0",
    ]  # fmt: skip
    assert rows["loss/static/qos0"] == Row("loss/static/qos0", "%", 41.0, 40.0)
    assert rows["loss/ghost/qos0"] == Row("loss/ghost/qos0", "%", 2.0, 20.0)
    assert rows["loss/pure/qos0"] == Row("loss/pure/qos0", "%", 0.5, 2.0)
    assert rows["loss/ghost-published/qos0"] == Row("loss/ghost-published/qos0", "%", 20.0, 20.0)
    assert rows["loss/line/qos0"] == Row("loss/line/qos0", "%", 1.0)
    assert rows["loss/ghost/qos1"] == Row("loss/ghost/qos1", "%", 18.0)  # the worst: the cut
    assert rows["loss/pure/qos1"].ours == 0
    assert rows["doubled"] == Row("doubled", "messages", 1)
    assert rows["heal/cut"].ours == pytest.approx(1_802)
    assert [rows[name].unit for name in ("heal/kill", "heal/cut")] == ["ms", "ms"]
    assert rows["mosquitto/loss/pure/qos0"].ours == pytest.approx(1.5)


def test_the_documents_times_and_changes_are_those_of_the_published_policy(
    records: list[SchmittRecord],
) -> None:
    _, at, broker, does = records[3].happened[0]
    records[3].happened[0] = StepTaken("t3", at, broker, does)
    rows = {row.name: row.ours for row in experiment.make_rows("hedgerow", records)}
    assert rows["alpha/t3"] == pytest.approx(250)
    assert rows["beta/ghost-published"] == pytest.approx(800)
    assert rows["gamma/ghost-published"] == pytest.approx(302)
    # A command that is repeated changes nothing more.
    assert rows["changes/ghost-published"] == 2
    assert rows["changes/pure"] == 0


def test_transitions_are_told_with_their_times_and_bridges(records: list[SchmittRecord]) -> None:
    assert report.transition_lines(records)[-2:] == [
        ["hedgerow ghost-published kill", "t0", "5 goes", "250", "–", "1–2", "–"],
        ["hedgerow ghost-published kill", "t4", "5 returns", "100", "302", "–", "1–2"],
    ]


def test_what_was_not_run_is_none() -> None:
    rows = {row.name: row.ours for row in experiment.make_rows("hedgerow", [])}
    assert len(rows) == 19
    assert set(rows.values()) == {None}


def test_stock_brokers_have_rows_of_their_own() -> None:
    rows = experiment.make_rows("mosquitto", [make_record(kind="mosquitto", missing=range(10))])
    assert [row.name for row in rows if row.ours is not None] == [
        "mosquitto/loss/pure/qos0", "mosquitto/loss/pure/qos1", "mosquitto/doubled", "mosquitto/heal/kill",
        "mosquitto/changes/pure",
    ]  # fmt: skip


def test_notes_say_how_long_the_hub_was_away_and_who_never_came_back() -> None:
    static, pure = make_record(Mode.STATIC), make_record(Mode.PURE)
    pure.arrived["5"] = {qos: arrivals[:100] for qos, arrivals in pure.arrived["5"].items()}
    assert list(experiment.make_notes([static, pure])) == [
        "hedgerow static kill: broker 5, the hub, was away for 40.0 % of the run.",
        "hedgerow pure kill: broker 5 heard nothing any more after its return.",
    ]


def test_fast_runs_are_those_that_rows_need() -> None:
    fast = [str(spec) for spec in experiment.choose_runs("hedgerow", fast=True)]
    assert fast == [
        "hedgerow static kill", "hedgerow ghost-published kill", "hedgerow ghost kill", "hedgerow pure kill",
        "mosquitto pure kill", "hedgerow ghost stop", "hedgerow pure stop", "hedgerow ghost cut",
        "hedgerow pure cut", "hedgerow line kill",
    ]  # fmt: skip
    assert len(list(experiment.choose_runs("hedgerow", fast=False))) == 14
    assert {spec.kind for spec in experiment.choose_runs("mosquitto", fast=False)} == {"mosquitto"}


def test_the_terminal_table() -> None:
    rows = [
        Row("loss/pure/qos0", "%", 0.5, 2.0),
        Row("heal/cut", "ms", 1802.4),
        Row("doubled", "messages", 0),
    ]
    assert text_table(row_cells(rows)).splitlines() == [
        "                    unit   ours  published",
        "loss/pure/qos0         %    0.5       2.00",
        "heal/cut              ms  1,802          –",
        "doubled         messages      0          –",
    ]
    assert [number(value) for value in (None, 12.34, 0.01234)] == ["–", "12.3", "0.0123"]


def test_the_json_form(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", Result([Row("a", "%", 1.5, 2.0), Row("b", "ms", None)], ["a note"]))
    text = (tmp_path / "x.json").read_text()
    assert re.sub(r"\s+", " ", text).strip() == (
        '{ "rows": [ { "name": "a", "unit": "%", "ours": 1.5, "published": 2.0 }, '
        '{ "name": "b", "unit": "ms", "ours": null, "published": null } ] }'
    )


def test_losses_stand_beside_the_published_ones(records: list[SchmittRecord]) -> None:
    head, *lines = report.loss_lines(records)
    found = {line[0]: dict(zip(head, line, strict=True)) for line in lines}
    assert found["hedgerow ghost"]["kill, QoS 0"] == "2.00"
    assert found["hedgerow ghost"]["cut, QoS 1"] == "18.0"
    assert found["hedgerow ghost"]["stop, QoS 0"] == "–"
    published = [found[f"hedgerow {mode}"]["published"] for mode in Mode]
    assert published == ["40.0", "20.0", "20.0", "2.00", "–"]


def test_the_report(records: list[SchmittRecord], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = experiment.make_rows("hedgerow", records)
    page = report.write_report(tmp_path, dict.fromkeys(Mode, TIMELINE), records, rows, ["a note <here>"])
    text = page.read_text()
    assert page.name == "report.html"
    assert "loss/pure/qos0" in text
    assert "a note &lt;here&gt;" in text
    pictures = re.findall(r'src="([^"]+)"', text)
    assert len(pictures) == 2 * len(records)
    for picture in pictures:
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert not re.search(r"https?://|<script", text)  # nothing from elsewhere
