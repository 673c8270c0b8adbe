"""`hedgerow lab run scale`: the sweep, its rows and its report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab import scale
from hedgerow_workshop.lab.experiments import EXPERIMENTS
from hedgerow_workshop.lab.harness.experiment import Request
from hedgerow_workshop.sim.filters import PLACINGS, FilterParameters, FilterTraffic, LinkTraffic
from hedgerow_workshop.sim.simulation import Measured, Parameters
from hedgerow_workshop.sim.topologies import TOPOLOGIES

SMALL = Parameters(topology="grid", size=20, subscribers=4, failures=(1,), publications=5)
MEASURED = Measured(
    Parameters(topology="ring", size=100, failures=(1,)),
    links=100,
    converged_after_s=0.5,
    late_changes=0,
    mesh=30,
    messages_per_link=1.25,
    announcements=9,
    control_packets=900,
    control_bytes=9_000,
    stretch_mean=1.5,
    stretch_max=2.0,
    deliveries={"whole": 1.0, "k1/unnoticed": 0.75, "k1/recovered": 1.0, "k1/repaired": 1.0},
    repaired_after_s={1: 1.6},
)


def rows(*measured: Measured) -> dict[str, float | None]:
    return {row.name: row.ours for row in scale.make_rows([(one, 3.0) for one in measured])}


def test_the_sweep_has_every_topology_size_redundancy_and_churn() -> None:
    configurations = list(scale.choose_configurations(fast=False))
    assert len(set(configurations)) == len(configurations)
    for topology in TOPOLOGIES:
        own = [each for each in configurations if each.topology == topology]
        assert {each.size for each in own} == {100, 1_000, 10_000}
        assert {each.redundancy for each in own} == {1, 2, 3, 4}
        assert {each.churn for each in own} == {0, 0.1, 0.5}
    assert configurations[0].size == 10_000
    assert max(each.size for each in scale.choose_configurations(fast=True)) == 1_000


def test_the_sweep_has_many_filters_everywhere() -> None:
    chosen = {(each.placing, each.count) for each in scale.choose_filters(fast=False)}
    assert chosen == {(placing, count) for placing in PLACINGS for count in (1, 100, 10_000)}
    assert max(each.count for each in scale.choose_filters(fast=True)) == 100


def test_rows_of_filters_say_what_an_occasion_costs() -> None:
    traffic = FilterTraffic(
        FilterParameters("one", 7), LinkTraffic(9, 900), LinkTraffic(2, 33), LinkTraffic(5, 200)
    )
    assert {row.name: row.ours for row in scale.filter_rows(traffic)} == {
        "filters/one/7/beginning/packets": 9,
        "filters/one/7/beginning/bytes": 900,
        "filters/one/7/announcement/packets": 2,
        "filters/one/7/announcement/bytes": 33,
        "filters/one/7/change/packets": 5,
        "filters/one/7/change/bytes": 200,
    }


def test_rows_name_what_was_measured_and_of_what() -> None:
    assert rows(MEASURED) == {
        "messages/worst": 1.25,
        "delivery/worst/whole": 100,
        "delivery/worst/k1/recovered": 100,
        "delivery/worst/k1/repaired": 100,
        "convergence/ring/100/r2": 0.5,
        "stretch/ring/100/r2": 1.5,
        "messages/ring/100/r2": 1.25,
        "delivery/ring/100/r2/whole": 100,
        "delivery/ring/100/r2/k1/unnoticed": 75,
        "delivery/ring/100/r2/k1/recovered": 100,
        "delivery/ring/100/r2/k1/repaired": 100,
        "compute/ring/100/r2": 3,
    }


def test_the_worst_rows_are_of_all_configurations_that_have_a_second_parent() -> None:
    poor: dict[str, float | None] = {"whole": 0.9, "k1/repaired": 0.5}
    worse = replace(MEASURED, messages_per_link=1.75, deliveries=poor)
    found = rows(MEASURED, worse)
    assert found["messages/worst"] == 1.75
    assert found["delivery/worst/k1/repaired"] == 50
    single = replace(worse, parameters=replace(MEASURED.parameters, redundancy=1))
    assert rows(MEASURED, single)["delivery/worst/k1/repaired"] == 100


def test_a_row_of_churn_says_how_much() -> None:
    parameters = replace(MEASURED.parameters, churn=0.1, failures=())
    found = rows(replace(MEASURED, parameters=parameters, deliveries={"whole": 1.0, "churn": 0.97}))
    assert found["delivery/ring/100/r2/churn10"] == 97
    assert "convergence/ring/100/r2/churn10" not in found


def test_what_did_not_converge_is_a_note_and_a_row_without_a_figure() -> None:
    lost = replace(MEASURED, converged_after_s=None, repaired_after_s={1: None})
    assert rows(lost)["convergence/ring/100/r2"] is None
    assert list(scale.make_notes([(lost, 1.0)])) == [
        "ring/100/r2: did not converge.",
        "ring/100/r2: did not work again with 1 brokers dead.",
    ]


@pytest.mark.parametrize("cores", [1, 2])
def test_configurations_are_computed_on_every_core_and_come_in_order(cores: int) -> None:
    configurations = [replace(SMALL, seed=seed) for seed in (3, 1, 2)]
    said: list[str] = []
    done = scale.compute(configurations, said.append, cores)
    assert [measured.parameters for measured, _ in done] == configurations
    assert all(seconds > 0 for _, seconds in done)
    assert len(said) == 3
    assert said[-1].startswith("3/3 grid/20/r2: ")


def test_a_run_writes_a_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sweep = [SMALL, replace(SMALL, redundancy=1), replace(SMALL, failures=(), churn=0.5, churn_s=5)]
    result = scale.run(Request(out=tmp_path / "out"), sweep, [FilterParameters("covered", 5)], cores=1)
    assert result.report == tmp_path / "out" / "report.html"
    text = result.report.read_text()
    assert "grid/20/r2/churn50" in text
    for picture in ("convergence.png", "failures.png"):
        assert picture in text
        assert (tmp_path / "out" / picture).stat().st_size > 1_000
    records = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [record["parameters"]["redundancy"] for record in records] == [2, 1, 2]
    assert {row.name for row in result.rows} >= {
        "messages/worst",
        "convergence/grid/20/r1",
        "filters/covered/5/announcement/bytes",
    }


@pytest.mark.parametrize("request_", [Request(broker="mosquitto"), Request(timeline=Path("t.toml"))])
def test_what_it_cannot_use_is_refused(request_: Request) -> None:
    with pytest.raises(ConfigError, match="neither --timeline nor --broker"):
        scale.run(request_)


def test_it_is_among_the_experiments() -> None:
    assert EXPERIMENTS["scale"][0] == scale.__name__
