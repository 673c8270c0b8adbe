"""The timeline file: the document's own, and what is said to wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.schmitt.record import Departure
from hedgerow_workshop.lab.schmitt.timeline import LINE_TIMELINE, TIMELINE, read_timeline

GOOD = """
run_s = 10.0
fast_s = { kill = 4.0, stop = 5.0, cut = 6.0 }
settle_s = 1.0
publish_interval_s = 0.01
brokers = ["a", "b", "c"]
publisher = "a"
measured = "b"
[[step]]
name = "t0"
at = 0.2
broker = "c"
does = "goes"
[[step]]
name = "t1"
at = 0.6
broker = "c"
does = "returns"
"""


def test_the_documents_timeline() -> None:
    timeline = read_timeline()
    assert timeline.brokers == ("1", "2", "3", "4", "5")
    assert [(step.broker, step.does) for step in timeline.steps] == [
        ("5", "goes"), ("4", "goes"), ("3", "goes"), ("5", "returns"), ("4", "returns"), ("3", "returns"),
    ]  # fmt: skip
    at = {step.name: step.at for step in timeline.steps}
    assert at["t4"] - at["t1"] == pytest.approx(0.4)  # the hub is away for 40 % of the run
    assert timeline.topology == "star"
    assert (timeline.publisher, timeline.measured, timeline.publish_interval_s) == ("1", "2", 0.01)


def test_stages_say_who_lives_between_the_steps() -> None:
    stages = read_timeline().stages()
    assert [stage.alive for stage in stages[:5]] == [
        ("1", "2", "3", "4", "5"), ("1", "2", "3", "4"), ("1", "2", "3"), ("1", "2"), ("1", "2", "5"),
    ]  # fmt: skip
    assert [stage.after for stage in stages] == [None, "t1", "t2", "t3", "t4", "t5", "t6"]
    assert stages[-1].alive == ("1", "2", "3", "4", "5")


def test_a_ghost_link_is_tried_beta_after_the_return_and_not_between() -> None:
    timeline = read_timeline()
    retry = timeline.ghost_retry()
    assert timeline.beta == 0.18  # published: 20 % with ghost links, 2 % without
    assert retry is not None
    at = {step.name: step.at for step in timeline.steps}
    attempts = [at["t1"] + retry * number for number in range(1, 8)]
    after = [each for each in attempts if each > at["t4"]]
    assert after[0] == pytest.approx(at["t4"] + timeline.beta)
    assert after[0] < at["t5"]


def test_the_broken_line() -> None:
    timeline = read_timeline(LINE_TIMELINE)
    assert timeline.topology == "line"
    assert [stage.alive for stage in timeline.stages()] == [
        ("1", "2", "3", "4", "5"), ("1", "3", "4", "5"), ("1", "2", "3", "4", "5"),
    ]  # fmt: skip
    assert (timeline.publisher, timeline.measured) == ("1", "5")
    assert timeline.ghost_retry() is None


@pytest.mark.parametrize(
    ("line", "instead", "reason"),
    [
        ("run_s = 10.0", "", "run_s: is a number from 1 to 3600, not None"),
        ("run_s = 10.0", "run_s = true", "run_s: is a number from 1 to 3600, not True"),
        ("kill = 4.0", "kill = 0", "fast_s: kill: is a number from 1 to 3600, not 0"),
        ("stop = 5.0, ", "", "fast_s: stop: is a number from 1 to 3600, not None"),
        ("kill = 4.0", "kill = 4.0, die = 1", "fast_s: die: there is no such key"),
        ("{ kill = 4.0, stop = 5.0, cut = 6.0 }", "5", "fast_s: is a table of kill, stop, cut, not 5"),
        ("settle_s = 1.0", "settle_s = 1.0\nsettle = 1", "settle: there is no such key"),
        ('brokers = ["a", "b", "c"]', 'brokers = ["a", "a"]', "brokers: are from 2 to 16, each named once"),
        (
            'brokers = ["a", "b", "c"]',
            "brokers = [1, 2]",
            "brokers: is a list of names of letters and digits",
        ),
        ('publisher = "a"', 'publisher = "x"', "publisher: is one of the brokers, not 'x'"),
        ("at = 0.2", "at = 20", "step 1: at: is a number from 0 to 1, not 20"),
        ("at = 0.2", "at = 0.7", "step t1: is before the one above it"),
        ('does = "goes"', 'does = "dies"', "step 1: does: is goes or returns, not 'dies'"),
        ('does = "goes"', 'does = "returns"', "step t0: broker c returns, but is there"),
        ('does = "returns"', 'does = "goes"', "step t1: broker c goes, but is away"),
        ('broker = "c"\ndoes = "goes"', 'broker = "a"\ndoes = "goes"', "step t0: broker a stays"),
        ('name = "t0"', "", "step 1: name: is letters and digits, not None"),
        ('name = "t0"', 'name = "t0"\nfoo = 1', "step 1: foo: there is no such key"),
        ("run_s = 10.0", "run_s = ", "Invalid value"),
        ("run_s = 10.0", 'run_s = 10.0\ntopology = "ring"', "topology: is star or line, not 'ring'"),
        ("run_s = 10.0", "run_s = 10.0\nbeta = 0", "beta: is a number from 0.01 to 1, not 0"),
        ('does = "returns"', 'does = "returns"\nbeta = 1', "step 2: beta: there is no such key"),
    ],
)
def test_what_is_wrong_is_named(line: str, instead: str, reason: str, tmp_path: Path) -> None:
    assert GOOD.count(line) == 1
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(line, instead))
    with pytest.raises(ConfigError) as raised:
        read_timeline(path)
    assert str(raised.value).startswith(f"timeline {path}: {reason}")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none.toml: No such file"):
        read_timeline(tmp_path / "none.toml")
    assert TIMELINE.is_file()


def test_a_good_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    timeline = read_timeline(path)
    assert timeline.steps[1].at == 0.6
    assert [timeline.seconds(Departure.STOP, fast) for fast in (True, False)] == [5.0, 10.0]
