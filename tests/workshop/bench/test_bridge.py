"""`hedgerow bench bridge`: its rows, what ours is told, and the names that it knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.bridges.section import read_section
from hedgerow.cli import main
from hedgerow.errors import ConfigError
from hedgerow_workshop.bench.bridge import OUR_BRIDGES, PEER_BRIDGE, ROW_NAMES, STAGES, bridging, run
from hedgerow_workshop.bench.end_to_end import measure
from hedgerow_workshop.bench.peers import BROKERS
from hedgerow_workshop.bench.report import BenchRequest
from hedgerow_workshop.bench.rounds import QUICK
from tests.workshop.bench.test_end_to_end import MOMENT, stand_ins


def test_every_row_has_ours_beside_mosquitto() -> None:
    ours = stand_ins()
    result = measure([replace(stage, ours=ours) for stage in STAGES], MOMENT)
    assert tuple(row.name for row in result.rows) == ROW_NAMES
    assert result.peers == ["mosquitto"]
    for row in result.rows:
        assert row.ours > 0
        assert row.ratio.keys() == {"mosquitto"}
    lost = result.about["lost"]
    assert isinstance(lost, dict)
    assert lost.keys() == {"qos0-64", "qos0-1024"}
    for counted in lost.values():
        assert counted.keys() == {*(each.name for each in OUR_BRIDGES), PEER_BRIDGE.name}
        assert all(each["sent"] > 0 and each["lost"] == 0 for each in counted.values())
    busy = result.about["busy"]
    assert isinstance(busy, dict)
    assert busy["qos1-64"][PEER_BRIDGE.name].keys() == {"loader", "broker", "far"}


def test_ours_gets_its_section_as_a_file(tmp_path: Path) -> None:
    section = OUR_BRIDGES[2].section(1234, 1)
    words = bridging(BROKERS["hedgerow"], section).command(0, tmp_path)
    assert words[-2:] == ["--bridge", str(tmp_path / "bridge.conf")]
    read = read_section((tmp_path / "bridge.conf").read_text())
    assert [str(each) for each in read.addresses] == ["127.0.0.1:1234"]
    assert [(each.pattern, each.direction, each.qos) for each in read.topics] == [("bench/#", "in", 1)]


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="no row qos9; there are qos0-64-hedgerow-hedgerow, "):
        run(BenchRequest(only=("qos9",)))
    assert main(["bench", "bridge", "--peers", "aedes"]) == 2
    assert "no peer aedes; there are mosquitto" in capsys.readouterr().err


def test_the_quick_plan_fits_a_minute() -> None:
    """What its rounds take at least, which must leave time for the brokers to start."""
    rounds_s = QUICK.warm_up_s + QUICK.rounds * QUICK.round_s
    assert sum(len(stage.ways) for stage in STAGES) * rounds_s < 30
