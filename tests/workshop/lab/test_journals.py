"""What runs of the lab leave: a journal each, and the experiment's rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hedgerow.journal import JournalReader, Writer, check
from hedgerow.message import Message
from hedgerow_workshop.lab.harness.experiment import Request, Result
from hedgerow_workshop.lab.harness.journals import leave, write_journal
from hedgerow_workshop.lab.harness.record import Arrival, Hearing, RunRecord, Stream
from hedgerow_workshop.lab.harness.rows import Row
from hedgerow_workshop.lab.morales import experiment as morales
from hedgerow_workshop.lab.morales.record import Outcome
from hedgerow_workshop.lab.overload import experiment as overload
from hedgerow_workshop.lab.schmitt import experiment as schmitt
from hedgerow_workshop.lab.schmitt.record import Mode
from hedgerow_workshop.lab.spohn import experiment as spohn
from hedgerow_workshop.lab.storm import experiment as storm
from tests.workshop.lab.lab_results import make_results
from tests.workshop.lab.test_schmitt_report import TIMELINE


def read(directory: Path) -> list[dict[str, Any]]:
    return [row for batch in JournalReader(directory).batches() for row in batch.to_pylist()]


def user_properties(row: dict[str, Any]) -> dict[str, str]:
    return dict(json.loads(row["properties"] or "{}").get("user_property", []))


@dataclass(slots=True)
class SmallRun(RunRecord):
    """It says of itself what it is told to."""

    made: list[Stream]
    heard_of: list[Hearing]
    happened: list[tuple[float, str]]
    file_name: str = "small"
    is_monotonic: bool = False

    def settings(self) -> dict[str, str]:
        return {"kind": "hedgerow"}

    def streams(self) -> list[Stream]:
        return self.made

    def hearings(self) -> Iterator[Hearing]:
        yield from self.heard_of

    def moments(self) -> list[tuple[float, str]]:
        return self.happened


def small_run(**changes: Any) -> SmallRun:
    stream = Stream("6", "grid", {0: 1_000.0, 1: 1_001.0}, 1, "n6")
    near = Hearing("7", stream, [Arrival(0, 1_000.25), Arrival(0, 1_001.5, is_repeated=True)], 1, "n7")
    far = Hearing("2", stream, [Arrival(5, 1_000.25)], group="far", since=1_000.5)  # it was never published
    return replace(SmallRun([stream], [near, far], [(1_000.75, "kill 4")]), **changes)


def test_a_journal_has_what_was_published_and_every_delivery_in_order(tmp_path: Path) -> None:
    write_journal(small_run(), "spohn", tmp_path / "journals" / "small")
    about, near, far, *rows = read(tmp_path / "journals" / "small")
    assert json.loads(about["payload"]) == {
        "experiment": "spohn", "run": "small", "settings": {"kind": "hedgerow"}
    }  # fmt: skip
    assert (about["topic"], near["topic"], far["topic"]) == ("$lab/run", "$lab/due", "$lab/due")
    assert (near["client"], near["payload"], near["received_at"], near["broker"]) == (
        "7",
        b"grid",
        None,
        "n7",
    )
    assert (far["client"], far["received_at"].timestamp()) == ("2", 1_000.5)
    assert user_properties(far) == {"group": "far"}
    assert [
        (row["received_at"].timestamp(), row["client"], row["origin"], row["sequence"]) for row in rows
    ] == [
        (1_000.0, "6", "6", 0),
        (1_000.25, "7", None, None),
        (1_000.25, "2", None, None),
        (1_000.75, None, None, None),
        (1_001.0, "6", "6", 1),
        (1_001.5, "7", None, None),
    ]
    assert [row["payload"] for row in rows] == [b"0", b"0", b"5", b"kill 4", b"1", b"0"]
    assert user_properties(rows[5]) == {"hedgerow-id": "6/0/0", "dup": "1"}
    assert (rows[1]["published_at"].timestamp(), rows[2]["published_at"]) == (1_000.0, None)
    assert (rows[1]["broker"], rows[1]["qos"], rows[0]["broker"]) == ("n7", 1, "n6")
    assert check(tmp_path / "journals" / "small").gaps == []
    assert [path.name for path in (tmp_path / "journals").iterdir()] == ["small"]


def test_times_of_the_monotonic_clock_become_those_of_the_calendar(tmp_path: Path) -> None:
    now = time.monotonic()
    run = small_run(made=[Stream("6", "grid", {0: now})], heard_of=[], happened=[], is_monotonic=True)
    write_journal(run, "spohn", tmp_path / "run")
    assert read(tmp_path / "run")[-1]["received_at"].timestamp() == pytest.approx(time.time(), abs=30)


def test_a_second_experiment_takes_the_place_of_the_first_and_of_nothing_else(tmp_path: Path) -> None:
    with Writer(tmp_path / "journals" / "node", "b1") as writer:
        writer.append(Message("farm/soil", b"3"), transport="mqtt", received_at=1.0)
    first, second = small_run(file_name="old"), small_run(made=[], heard_of=[])
    leave(tmp_path, "spohn", [first, second], [Row("lost", "messages", 0)], ["Before."])
    leave(tmp_path, "spohn", [small_run()], [Row("lost", "messages", 1, 2.5)], ["After."])
    assert sorted(path.name for path in (tmp_path / "journals").iterdir()) == ["node", "small"]
    assert len(read(tmp_path / "journals" / "small")) == 9
    assert json.loads((tmp_path / "rows.json").read_text()) == {
        "experiment": "spohn",
        "runs": ["small"],
        "rows": [{"name": "lost", "unit": "messages", "ours": 1, "published": 2.5}],
        "notes": ["After."],
    }


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"runs": 3}', '{"runs": ["kept", 3]}', '{"runs": ["../kept", "", ".", "..", "/"]}']
)
def test_a_strange_file_of_rows_removes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "journals" / "node").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "rows.json").write_text(text)
    leave(tmp_path, "spohn", [], [], [])
    assert (tmp_path / "kept").is_dir()
    assert (tmp_path / "journals" / "node").is_dir()


def test_what_has_the_same_number_on_two_topics_has_two_ids(tmp_path: Path) -> None:
    results = make_results()
    records: list[RunRecord] = [results.schmitt[0], results.storm[0], results.spohn[1]]
    for number, run in enumerate(records):
        write_journal(run, "lab", tmp_path / str(number))
        rows = read(tmp_path / str(number))
        published = sum(len(stream.sent) for stream in run.streams())
        delivered = sum(len(hearing.arrivals) for hearing in run.hearings())
        assert len([row for row in rows if row["origin"] is not None]) == published
        due = {(hearing.subscriber, hearing.stream.topic) for hearing in run.hearings()}
        assert len(rows) == 1 + len(due) + published + delivered + len(run.moments())


def test_every_experiment_leaves_its_journals(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = make_results()
    conclusions: dict[str, tuple[Callable[[Request], Result], int]] = {
        "spohn": (lambda request: spohn.conclude(request, results.spohn, []), len(results.spohn)),
        "schmitt": (
            lambda request: schmitt.conclude(request, dict.fromkeys(Mode, TIMELINE), results.schmitt, []),
            len(results.schmitt),
        ),
        "morales": (
            lambda request: morales.conclude(request, Outcome(results.morales, results.farm)),
            len(results.morales) + 1,
        ),
        "storm": (lambda request: storm.conclude(request, results.storm, []), len(results.storm)),
        "overload": (lambda request: overload.conclude(request, results.overload), len(results.overload)),
    }
    for experiment, (conclude, expected) in conclusions.items():
        directory = tmp_path / experiment
        directory.mkdir()
        result = conclude(Request(out=directory))
        left = json.loads((directory / "rows.json").read_text())
        assert left["experiment"] == experiment
        assert len(left["rows"]) == len(result.rows)
        assert sorted(left["runs"]) == sorted(path.name for path in (directory / "journals").iterdir())
        assert len(left["runs"]) == expected
        for run in left["runs"]:
            assert (directory / f"{run}.json").exists()
