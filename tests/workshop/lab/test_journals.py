"""What runs of the lab leave: a journal each, and the experiment's rows."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hedgerow.journal import JournalReader, Writer, check
from hedgerow.message import Message
from hedgerow_workshop.lab.experiments import Request, Row
from hedgerow_workshop.lab.journals import Delivered, Due, Published, RunJournal, leave, write_journal
from hedgerow_workshop.lab.morales import experiment as morales
from hedgerow_workshop.lab.schmitt import experiment as schmitt
from hedgerow_workshop.lab.schmitt.journal import journal_of as schmitt_journal
from hedgerow_workshop.lab.spohn import experiment as spohn
from hedgerow_workshop.lab.spohn.journal import journal_of as spohn_journal
from hedgerow_workshop.lab.storm import experiment as storm
from hedgerow_workshop.lab.storm.journal import journal_of as storm_journal
from tests.workshop.lab.lab_results import make_results


def read(directory: Path) -> list[dict[str, Any]]:
    return [row for batch in JournalReader(directory).batches() for row in batch.to_pylist()]


def user_properties(row: dict[str, Any]) -> dict[str, str]:
    return dict(json.loads(row["properties"] or "{}").get("user_property", []))


def small_run(**changes: Any) -> RunJournal:
    fields: dict[str, Any] = {
        "due": [Due("7", "grid", broker="n7"), Due("2", "grid", 1_000.5, group="far")],
        "published": [Published("6", number, "grid", 1_000.0 + number, 1, "n6") for number in range(2)],
        "delivered": [
            Delivered("7", "6", 0, "grid", 1_000.25, 1_000.0, 1, "n7"),
            Delivered("7", "6", 0, "grid", 1_001.5, 1_000.0, 1, "n7", is_repeated=True),
            Delivered("2", "6", 0, "grid", 1_000.25, None),
        ],
        "happened": [(1_000.75, "kill 4")],
        "is_monotonic": False,
    }
    return RunJournal("spohn", "small", {"kind": "hedgerow"}, **{**fields, **changes})


def test_a_journal_has_what_was_published_and_every_delivery_in_order(tmp_path: Path) -> None:
    write_journal(small_run(), tmp_path / "journals" / "small")
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
    assert [row["payload"] for row in rows] == [b"0", b"0", b"0", b"kill 4", b"1", b"0"]
    assert user_properties(rows[5]) == {"hedgerow-id": "6/0/0", "dup": "1"}
    assert (rows[1]["published_at"].timestamp(), rows[2]["published_at"]) == (1_000.0, None)
    assert (rows[1]["broker"], rows[1]["qos"], rows[0]["broker"]) == ("n7", 1, "n6")
    assert check(tmp_path / "journals" / "small").gaps == []
    assert [path.name for path in (tmp_path / "journals").iterdir()] == ["small"]


def test_times_of_the_monotonic_clock_become_those_of_the_calendar(tmp_path: Path) -> None:
    now = time.monotonic()
    run = small_run(
        due=[], published=[Published("6", 0, "grid", now)], delivered=[], happened=[], is_monotonic=True
    )
    write_journal(run, tmp_path / "run")
    assert read(tmp_path / "run")[-1]["received_at"].timestamp() == pytest.approx(time.time(), abs=30)


def test_a_second_experiment_takes_the_place_of_the_first_and_of_nothing_else(tmp_path: Path) -> None:
    with Writer(tmp_path / "journals" / "node", "b1") as writer:
        writer.append(Message("farm/soil", b"3"), transport="mqtt", received_at=1.0)
    first, second = small_run(), small_run(published=[], delivered=[])
    first.name = "old"
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
    for number, run in enumerate(
        [
            schmitt_journal(results.schmitt[0]),
            storm_journal(results.storm[0]),
            spohn_journal(results.spohn[1]),
        ]
    ):
        write_journal(run, tmp_path / str(number))
        rows = read(tmp_path / str(number))
        assert len([row for row in rows if row["origin"] is not None]) == len(run.published)
        assert len(rows) == 1 + len(run.due) + len(run.published) + len(run.delivered) + len(run.happened)


def test_every_experiment_leaves_its_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of what they would carry out, they are given records."""
    results = make_results()
    answers: dict[Any, tuple[str, Any]] = {
        spohn: ("perform", results.spohn),
        schmitt: ("run_all", results.schmitt),
        morales: ("perform", (results.morales, results.farm)),
        storm: ("perform", results.storm),
    }
    for experiment, (name, answer) in answers.items():
        monkeypatch.setattr(experiment, name, _answering(answer))
        monkeypatch.setattr(experiment.report, "write_report", lambda directory, *_: directory)
        directory = tmp_path / experiment.__name__.split(".")[-2]
        result = experiment.run(Request(out=directory))
        left = json.loads((directory / "rows.json").read_text())
        assert left["experiment"] == directory.name
        assert len(left["rows"]) == len(result.rows)
        assert sorted(left["runs"]) == sorted(path.name for path in (directory / "journals").iterdir())
        expected = len(answer[0]) + 1 if isinstance(answer, tuple) else len(answer)
        assert len(left["runs"]) == expected
        for run in left["runs"]:
            assert (directory / f"{run}.json").exists()


def _answering(value: Any) -> Callable[..., Any]:
    async def answer(*_: object) -> Any:
        await asyncio.sleep(0)
        return value

    return answer
