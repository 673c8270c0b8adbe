"""What the demo says, and what it replays."""

from __future__ import annotations

import io
import json
import time
from itertools import islice

import pytest

from hedgerow.message import Message
from hedgerow_workshop.demo.readings import LINES_APART, as_station, as_text, day, replay
from hedgerow_workshop.demo.terminal import Terminal
from hedgerow_workshop.demo.watch import Watch


def test_readings_begin_at_another_hour_for_each_place_and_never_end() -> None:
    lines = day()
    assert next(replay(1)) == lines[LINES_APART]
    assert list(islice(replay(0), len(lines) + 1))[-1] == lines[0]


def test_a_reading_is_told_as_the_rules_of_the_pipeline_read_it() -> None:
    reading = day()[0]
    assert as_text(reading, "temperature") == f"{reading['temperature']:.1f} °C"
    station = json.loads(as_station(reading, 7, 1.23456))
    assert (station["number"], station["time"], station["wind"]) == (7, 1.235, reading["wind"])


def test_where_lines_cannot_change_there_is_no_progress_and_no_colour() -> None:
    stream = io.StringIO()
    terminal = Terminal(stream, is_live=False)
    terminal.progress("under way")
    terminal.step("1/5", 1.25, "found")
    terminal.head("done")
    assert stream.getvalue() == "[1/5]   1.2 s  found\ndone\n"


def test_on_a_terminal_a_line_that_stays_replaces_the_one_that_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = io.StringIO()
    terminal = Terminal(stream, is_live=True)
    terminal.progress("under way")
    terminal.say("found")
    terminal.say("done")
    assert "under way" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[Kfound\ndone\n")


def test_who_wants_no_colours_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    terminal = Terminal(stream, is_live=True)
    terminal.progress("under way")
    terminal.step("1/5", 1.25, "found")
    terminal.head("done")
    assert stream.getvalue().endswith("\r\x1b[K[1/5]   1.2 s  found\ndone\n")
    assert "m" not in stream.getvalue()


def tell(watch: Watch, name: str, value: object) -> None:
    watch.receive(Message(f"$SYS/broker/hot/{name}", json.dumps(value).encode()))


def test_a_hand_over_is_measured_from_its_beginning() -> None:
    watch = Watch()
    before = {"what": "delegated", "which": "farm/soil", "fixed": "north", "at": time.time() - 5}
    watch.begin()
    tell(watch, "moves", [before])
    assert watch.delegated_s("north") is None
    tell(watch, "moves", [before, {**before, "at": time.time() + 2}])
    taken_s = watch.delegated_s("north")
    assert taken_s is not None
    assert 1.5 < taken_s < 2.5
    assert watch.delegated_s("south") is None


def test_what_plan_the_tractor_follows() -> None:
    watch = Watch()
    tell(watch, "plan", None)
    assert watch.plan is None
    assert watch.planned_at is None
    tell(watch, "plan", {"topics": 3})
    assert watch.plan == {"topics": 3}
    first_at = watch.planned_at
    tell(watch, "plan", {"topics": 4})
    assert watch.plan == {"topics": 4}
    assert watch.planned_at == first_at is not None
