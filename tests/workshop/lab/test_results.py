"""What the lab adds to the report: its figures are those of the records, and its page is sound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import mean, pstdev
from typing import TYPE_CHECKING

import pytest

from hedgerow.errors import HedgerowError
from hedgerow.journal import Writer
from hedgerow.message import Message
from hedgerow.pipeline.report import html
from hedgerow.pipeline.report.charts import Curve, line_chart
from hedgerow.pipeline.report.report import write_report
from hedgerow.pipeline.report.sections import added_sections
from hedgerow_workshop.lab.harness.journals import write_journal
from hedgerow_workshop.lab.harness.measure import count_doubled, count_lost, delays_ms
from hedgerow_workshop.lab.harness.record import Arrival, Hearing, RunRecord, Stream
from hedgerow_workshop.lab.morales import measure as morales
from hedgerow_workshop.lab.pipeline_report import SECTIONS
from hedgerow_workshop.lab.results.descriptions import lost_percent, schmitt_lines, sections_of, spohn_lines
from hedgerow_workshop.lab.results.gather import Experiment, Figures, ReportRun, gather
from hedgerow_workshop.lab.schmitt import measure as schmitt
from hedgerow_workshop.lab.storm import measure as storm
from hedgerow_workshop.lab.storm.record import SubscriberKind
from hedgerow_workshop.lab.sweep import job
from tests.pipeline.pages import Page
from tests.workshop.lab.lab_results import Results, leave_results, make_results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVIL = "<script>alert('&')</script>"
# The journal has microseconds.
EXACT_MS = 0.002


class EvilRun(RunRecord):
    file_name = "evil"

    def settings(self) -> dict[str, str]:
        return {EVIL: EVIL}

    def streams(self) -> list[Stream]:
        return [Stream(EVIL, EVIL, {0: 5.0})]

    def hearings(self) -> Iterator[Hearing]:
        yield Hearing(EVIL, self.streams()[0], [Arrival(0, 5.1)], group=EVIL)

    def moments(self) -> list[tuple[float, str]]:
        return [(5.05, EVIL)]


class Gathered:
    def __init__(self, directory: Path, records: Results, experiments: list[Experiment]) -> None:
        self.directory = directory
        self.records = records
        self.experiments = {experiment.name: experiment for experiment in experiments}

    def run(self, experiment: str, name: str) -> ReportRun:
        return next(run for run in self.experiments[experiment].runs if run.name == name)


@pytest.fixture(scope="module")
def gathered(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Gathered:
    directory = tmp_path_factory.mktemp("results")
    records = make_results()
    leave_results(records, directory)
    write_journal(EvilRun(), EVIL, directory / "evil [1]" / "journals" / "evil")
    with Writer(directory / "other" / "journals" / "node", "b1") as writer:
        writer.append(Message("farm/soil", b"3"), transport="mqtt", received_at=1.0)
    return Gathered(directory, records, gather(spark, [directory, directory / "spohn"]))


def assert_delays(figures: Figures, expected_ms: list[float]) -> None:
    assert figures.measured == len(expected_ms)
    assert figures.mean_ms == pytest.approx(mean(expected_ms), abs=EXACT_MS)
    assert figures.deviation_ms == pytest.approx(pstdev(expected_ms), abs=EXACT_MS)
    assert figures.most_ms == pytest.approx(max(expected_ms), abs=EXACT_MS)


def test_every_experiment_and_run_is_found(gathered: Gathered) -> None:
    assert {name: len(each.runs) for name, each in gathered.experiments.items()} == {
        "spohn": 2, "schmitt": 2, "morales": 7, "storm": 1, "overload": 1, "scale": 0, "backlog": 0,
        "genera": 0, "zhang": 2, EVIL: 1,
    }  # fmt: skip
    assert gathered.experiments["scale"].notes == ["A note of scale."]
    assert gathered.experiments["spohn"].rows[1]["published"] == 18.61


def test_spohns_figures_are_those_of_its_records(gathered: Gathered) -> None:
    for record in gathered.records.spohn:
        run = gathered.run("spohn", record.spec.file_name)
        assert run.published == sum(map(len, record.sent.values()))
        assert run.figures.lost == count_lost(record.hearings())
        assert run.figures.doubled == count_doubled(record.hearings())
        for part in run.parts:
            assert_delays(part.figures, delays_ms(record.heard(part.subscriber)))
    failures = gathered.run("spohn", "hedgerow-failures")
    assert (failures.figures.lost, failures.figures.doubled) == (3, 2)
    assert [(round(at_s, 3), what) for at_s, what in failures.happened] == [(1, "kill 4"), (3, "cut 4-5")]
    assert spohn_lines(gathered.experiments["spohn"].runs)[1:] == [
        ["hedgerow-federated-60", "2", "60", "21.10 ± 0.00", "34.77 ± 3.17", "20.0"],
        ["hedgerow-federated-60", "7", "60", "5.40 ± 0.00", "18.61 ± 3.17", "5.00"],
    ]


def test_schmitts_figures_are_those_of_its_records(gathered: Gathered) -> None:
    for record in gathered.records.schmitt:
        run = gathered.run("schmitt", record.spec.file_name)
        assert run.published == 2 * len(record.sent)
        for part in run.parts:
            qos = int(part.group.removeprefix("qos"))
            expected = schmitt.loss_percent(record, qos, part.subscriber)
            assert lost_percent(part.figures) == pytest.approx(expected)
            assert part.figures.doubled == schmitt.doubled(record, qos, part.subscriber)
    lines = {line[0]: line[1:] for line in schmitt_lines(gathered.experiments["schmitt"].runs)}
    assert lines["hedgerow-pure-kill"] == ["6.67", "1.00", "2.00"]
    assert lines["hedgerow-static-kill"] == ["40.0", "0", "40.0"]


def test_morales_figures_are_those_of_its_records(gathered: Gathered) -> None:
    for record in gathered.records.morales:
        run = gathered.run("morales", record.spec.file_name)
        assert run.figures.lost == count_lost(record.hearings())
        assert run.figures.doubled == count_doubled(record.hearings())
        assert_delays(run.figures, delays_ms(record.hearings()))
    assert gathered.run("morales", "lte-biased90-hot2s").figures.lost == 2
    farm = gathered.records.farm
    figures = gathered.run("morales", "farm").figures
    assert figures.lost == len(list(morales.missing(farm))) == 1
    assert figures.delivered == morales.delivered(farm)
    assert figures.repeated == morales.repeated(farm) == 1
    assert figures.doubled == morales.doubled(farm) + morales.repeated(farm) == 2


def test_storms_figures_are_those_of_its_records(gathered: Gathered) -> None:
    (record,) = gathered.records.storm
    groups = {part.group: part.figures for part in gathered.run("storm", "storm-killed").groups}
    assert set(groups) == {"extension", "paho5", "paho311"}
    for kind in SubscriberKind:
        counts = storm.count(record, kind)
        if counts is None:
            continue
        found = groups[kind]
        assert (found.expected, found.lost, found.doubled, found.repeated) == counts[:4]
        expected_ms = delays_ms(storm.of_kind(record, kind))
        if expected_ms:
            assert_delays(found, expected_ms)
            assert found.p50_ms == pytest.approx(sorted(expected_ms)[1], abs=EXACT_MS)
    assert groups["paho5"].repeated == 2
    assert groups["paho311"] == Figures(expected=3, lost=3)


def test_delays_have_a_distribution_and_a_course(gathered: Gathered) -> None:
    run = gathered.run("spohn", "hedgerow-failures")
    assert len(run.percentiles) == 101
    assert run.percentiles == sorted(run.percentiles)
    assert run.percentiles[50] == pytest.approx(20, abs=EXACT_MS)
    slow = [at_s for at_s, _, most_ms in run.course if most_ms > 500]
    assert min(slow) >= 3
    assert max(slow) <= 4.5


def test_the_page_is_sound_and_escapes_what_it_is_given(
    spark: SparkSession, gathered: Gathered, tmp_path: Path
) -> None:
    def run(parameters: job.Parameters) -> dict[str, float | None]:
        if parameters["nodes"] == 3:
            raise ValueError("no 3")
        return {"delay": float(parameters["nodes"])}

    job.write(spark, tmp_path, job.points({"nodes": [1, 2, 3], "kind": ["a", EVIL]}), run)
    write_report(spark, tmp_path / "page.html", tmp_path, sections_of(gathered.experiments.values()))
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = Page(text)
    assert found.faults == []
    assert "<script" not in text
    assert EVIL in found.text
    assert found.tags.count("h2") == 10 + 1
    assert found.tags.count("svg") > 15
    for words in (
        "Autonomous brokers, federated", "34.77 ± 3.17", "A note of storm.", "Bursts of biased traffic",
        "Sweep of the simulator", "ValueError: no 3", "UDP publish/subscribe for sensors",
    ):  # fmt: skip
        assert words in found.text, words


def test_the_report_of_the_pipeline_has_them(spark: SparkSession, tmp_path: Path) -> None:
    assert SECTIONS in added_sections()
    assert list(SECTIONS.sections(spark, [tmp_path])) == []
    with pytest.raises(HedgerowError, match="is no directory"):
        SECTIONS.sections(spark, [tmp_path / "nowhere"])


def test_rows_that_cannot_be_read_become_a_note(spark: SparkSession, tmp_path: Path) -> None:
    for name, text in {"a": "{", "b": '{"experiment": "x", "rows": 3, "notes": [1]}', "c": "[]"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.json").write_text(text)
    torn, strange = gather(spark, [tmp_path])
    assert torn.notes[0].startswith("rows.json cannot be read")
    assert (strange.rows, strange.notes) == ([], ["1"])


@pytest.mark.parametrize("log_x", [False, True])
@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1.0, 1.0)],
        [(0.0, 0.0), (float("nan"), 3.0), (1e-9, float("inf"))],
        [(-5.0, -3.0), (1e9, 2.0)],
        [(5.0, 5.0)] * 2,
    ],
)
def test_any_points_make_a_chart(points: list[tuple[float, float]], log_x: bool) -> None:
    chart = line_chart(EVIL, (EVIL, EVIL), [Curve(EVIL, points)] * 9, {EVIL: 1.0}, log_x=log_x)
    found = Page(html.page("page", [chart]))
    assert found.faults == []
    assert "nan" not in chart
    assert "inf" not in chart
