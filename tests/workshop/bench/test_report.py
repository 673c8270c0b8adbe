"""Rows, and the table and JSON that they become."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hedgerow_workshop.bench.report import BenchResult, BenchRow, machine, progress, table, write_json

RESULT = BenchResult(
    "hedgerow",
    ["mosquitto", "nats-server"],
    [
        BenchRow(
            "qos0-1to1", "msg/s", "higher", 1_500_000.0, {"mosquitto": 100_000.0, "nats-server": 3_000_000.0}
        ),
        BenchRow("ready", "s", "lower", 0.25, {"mosquitto": 0.0}),
    ],
    {"notes": ["amqtt: not installed"]},
)


def test_json(tmp_path: Path) -> None:
    write_json(tmp_path / "bench.json", RESULT)
    assert json.loads((tmp_path / "bench.json").read_text()) == {
        "rows": [
            {
                "name": "qos0-1to1",
                "unit": "msg/s",
                "better": "higher",
                "ours": 1_500_000.0,
                "peers": {"mosquitto": 100_000.0, "nats-server": 3_000_000.0},
                "ratio": {"mosquitto": 15.0, "nats-server": 0.5},
            },
            {
                "name": "ready",
                "unit": "s",
                "better": "lower",
                "ours": 0.25,
                "peers": {"mosquitto": 0.0},
                "ratio": {},
            },
        ],
        "notes": ["amqtt: not installed"],
    }


def test_table() -> None:
    assert table(RESULT).splitlines() == [
        "           unit   better   hedgerow  mosquitto  ratio  nats-server   ratio",
        "qos0-1to1  msg/s  higher  1,500,000    100,000  15.0×    3,000,000  0.500×",
        "ready      s      lower       0.250       0.00                   –",
    ]


def test_the_machine_is_named() -> None:
    assert machine().keys() == {"system", "processor", "cores", "python", "hedgerow"}


def test_progress_without_a_terminal_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(1) as shown:
        shown.begin("qos0-1to1", 2)
        shown.step("mosquitto, round 1 of 3")
        shown.note("amqtt: not installed")
    captured = capsys.readouterr()
    assert captured.err == "qos0-1to1 …\namqtt: not installed\n"
    assert captured.out == ""


def test_progress_on_a_terminal_is_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress(2, is_terminal=True) as shown:
        shown.begin("qos0-1to1", 2)
        shown.step("mosquitto, round 1 of 3")
        shown.note("amqtt: not installed")
    captured = capsys.readouterr()
    assert "mosquitto, round 1 of 3" in captured.err
    assert "amqtt: not installed" in captured.err
    assert captured.out == ""
