"""`bench devices` as a whole, on plans of a moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hedgerow.errors import ConfigError
from hedgerow_workshop.bench import device_cases
from hedgerow_workshop.bench.device_cases import DevicePlan
from hedgerow_workshop.bench.devices import ROW_NAMES, SHAPES, run, scenarios
from hedgerow_workshop.bench.peers import BROKERS, OURS, BrokerKind
from hedgerow_workshop.bench.report import BenchRequest
from hedgerow_workshop.bench.rounds import Plan
from hedgerow_workshop.bench.scenarios import measure_all

MOMENT = Plan(rounds=1, warm_up_s=0.02, round_s=0.05, starts=1)
LITTLE = DevicePlan(share=0.01, fresh_rounds=1)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_cases, "SETTLE_S", 0.02)


def mosquitto() -> BrokerKind:
    if BROKERS["mosquitto"].version() is None:
        pytest.skip("mosquitto is not installed; `make test` fetches it where it can")
    return BROKERS["mosquitto"]


def test_every_row_is_measured() -> None:
    """Mosquitto stands in for ours."""
    peer = mosquitto()
    result = measure_all(scenarios(LITTLE), replace(peer, name="ours"), [peer], MOMENT)
    assert tuple(row.name for row in result.rows) == ROW_NAMES
    for row in result.rows:
        assert row.peers.keys() == {"mosquitto"}, row.name
        assert row.ours > 0 or row.name.endswith("/memory"), row.name
    notes = result.about["notes"]
    assert isinstance(notes, list)
    assert all("of a core, loader and broker took" in note for note in notes)
    busy = result.about["busy"]
    assert isinstance(busy, dict)
    assert [note.partition(":")[0] for note in notes] == list(busy)
    assert SHAPES.keys() < busy.keys()


@pytest.mark.parametrize(
    "case", ["many-to-one-qos1", "many-to-one-qos1-durable", "mixed", "reconnect-durable"]
)
def test_ours_is_measured(case: str) -> None:
    result = measure_all(scenarios(LITTLE), BROKERS[OURS], [], MOMENT, (case,))
    assert [row.name for row in result.rows] == [case]
    assert result.rows[0].ours > 0


def test_less_latency_and_memory_are_better() -> None:
    lower = {name for scenario in scenarios(LITTLE) for name in scenario.lower}
    assert lower == {name for name in ROW_NAMES if name.endswith(("/p50", "/p99", "/memory"))}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="no row fields"):
        run(BenchRequest(only=("fields",)))
    with pytest.raises(ConfigError, match="no peer amqtt"):
        run(BenchRequest(peers=("amqtt",)))
