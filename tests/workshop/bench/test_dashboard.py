"""`hedgerow bench dashboard`: a small fabric through and through, and what it makes of what it saw."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow.pipeline.program import Program
from hedgerow_workshop.bench import BenchError, dashboard
from hedgerow_workshop.bench.browser import PROGRAMS, NoBrowserError, find_browser, running_browser
from hedgerow_workshop.bench.dashboard import (
    COST_ROWS,
    PAINT_ROW,
    ROW_NAMES,
    Fabric,
    Pace,
    Scale,
    Seen,
    cost_rows,
    measure,
    run,
)  # fmt: skip
from hedgerow_workshop.bench.dashboard_reader import Answer, intervals_of, read_answers
from hedgerow_workshop.bench.report import BenchRequest
from hedgerow_workshop.percentiles import percentile_95
from tests.programs import wait_until

SMALL = Scale(
    nodes=3, filters=6, paints=1, rounds=1, saturated_s=0.1, paced_s=2.2, opened_s=0.0, closed_s=0.0
)


def test_every_row_of_a_small_fabric() -> None:
    if find_browser() is None:
        pytest.skip("chromium is not installed; `make test` fetches it where it can")
    result = measure(SMALL)
    assert tuple(row.name for row in result.rows) == ROW_NAMES
    assert (result.ours, result.peers) == ("open", ["closed", "asked"])
    rows = {row.name: row for row in result.rows}
    assert all(row.ours > 0 for row in result.rows)
    assert rows[PAINT_ROW].peers == {"asked": dashboard.PAINT_AT_MOST_S}
    assert rows["throughput"].peers == {"asked": dashboard.AT_LEAST}
    assert rows["processor-paced"].peers.keys() == {"closed", "asked"}
    notes = result.about["notes"]
    assert isinstance(notes, list)
    assert any(note.startswith("/: ") for note in notes)
    assert any(note.startswith("/messages?filter=%23: ") for note in notes)


def test_without_a_browser_the_other_rows_are_there() -> None:
    result = measure(SMALL, [PAINT_ROW], lambda: running_browser(lambda name: None))
    assert result.rows == []
    assert result.about["notes"] == [f"first-paint: no browser is installed: none of {', '.join(PROGRAMS)}"]


def test_a_browser_that_is_not_there_is_named() -> None:
    assert find_browser(lambda name: None) is None
    with (
        pytest.raises(NoBrowserError, match="none of chromium, chromium-headless-shell"),
        running_browser(lambda name: None),
    ):
        pytest.fail("there is one")


def test_the_messages_are_paced_and_none_is_lost(tmp_path: Path) -> None:
    with ExitStack() as stack:
        fabric = Fabric(SMALL, tmp_path, stack)
        pace = Pace(fabric.node, stack)
        pace.run(0.05)
        with Program("a stranger", tmp_path / "stranger") as stranger:
            stranger.launch([sys.executable, "-c", "raise SystemExit('no such page')"])
            wait_until(lambda: stranger.has_ended, "it to end")
            with pytest.raises(BenchError, match="a stranger ended: no such page"):
                fabric.wait_until_shown(stranger)


# What is made of what was seen


def answer(path: str, at: float, age_s: float | None = None) -> Answer:
    return Answer(path, at, 0.01, 1_000, True, age_s)


def seen(share: float, answers: list[Answer], *rates: float) -> Seen:
    return Seen([*rates], [*rates], [share], [answers])


def test_what_is_not_as_promised_is_said() -> None:
    late = [answer("/", 10.0), answer("/", 13.0, 5.0)]
    notes: list[str] = []
    rows = cost_rows({"open": seen(0.3, late, 90), "closed": seen(0.2, [], 110, 90)}, notes)
    assert tuple(row.name for row in rows) == COST_ROWS
    said = "\n".join(notes)
    assert "update-p95: 3.00 s is more than the 1.5 s that we promise" in said
    assert "age-p95: 5.00 s is more than the 2.5 s that we promise" in said
    assert "throughput: 0.900× is less than the 0.95× that we promise" in said
    assert "100 ms of processor time a second" in said
    assert "processor-paced: that is more than the 50 ms that we promise" in said


def test_what_is_as_promised_is_not_mentioned() -> None:
    notes: list[str] = []
    good = [answer("/", 10.0), answer("/", 11.0, 0.5)]
    cost_rows({"open": seen(0.2, good, 99), "closed": seen(0.2, [], 100, 100)}, notes)
    assert "promise" not in "\n".join(notes)


def test_a_round_is_beside_its_neighbours_and_the_middle_one_counts() -> None:
    """A machine that becomes ten times as fast, and one round that was disturbed."""
    shown = [answer("/", 10.0), answer("/", 11.0, 0.5)]
    closed = seen(0.2, [], 100, 300, 500, 1_000)
    notes: list[str] = []
    rows = cost_rows({"open": seen(0.2, shown, 194, 20, 735), "closed": closed}, notes)
    (row,) = (row for row in rows if row.name == "throughput")
    assert row.ours == pytest.approx(0.97)
    assert "throughput: 194 messages, 400 when closed; 0.05× to 0.98× in 3 rounds" in notes


def test_a_dashboard_that_shows_nothing_is_an_error() -> None:
    with pytest.raises(BenchError, match="showed no message"):
        cost_rows({"open": seen(0.1, [], 1), "closed": seen(0.1, [], 1, 1)}, [])


def test_intervals_are_of_one_page() -> None:
    answers = [answer("/", 1.0), answer("/messages", 1.1), answer("/", 2.0), answer("/messages", 2.3)]
    assert sorted(intervals_of(answers)) == pytest.approx([1.0, 1.2])


def test_percentile() -> None:
    assert percentile_95([float(number) for number in range(101)]) == 95
    assert percentile_95([7.0]) == 7


def test_a_line_that_is_not_whole_is_left(tmp_path: Path) -> None:
    program = Program("reader", tmp_path)
    program.output.write_text('["/", 1.0, 0.1, 10, true, null]\n["/", 2.0')
    assert list(read_answers(program)) == [Answer("/", 1.0, 0.1, 10, True, None)]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="no row qos9; there are first-paint, update-p95"):
        run(BenchRequest(only=("qos9",)))
    with pytest.raises(ConfigError, match="no peer mosquitto; there are closed"):
        run(BenchRequest(peers=("mosquitto",)))
