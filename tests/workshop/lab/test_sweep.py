"""The sweep: which runs there are, that they are the same wherever they are made, and what comes of them."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow.cli.parsing import Parser
from hedgerow.cli.pipeline import add_arguments
from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.sweep import job
from hedgerow_workshop.lab.sweep.job import SweepPoint, points
from hedgerow_workshop.lab.sweep.simulated import (
    check_points,
    parameters_of,
    points_of,
    read_grid,
    run_point,
    run_sweep,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def arguments_of(*words: str) -> Namespace:
    parser = Parser("hedgerow pipeline", "")
    add_arguments(parser)
    return parser.parse(["sweep", *words])


def parse(*words: str) -> list[SweepPoint]:
    return points_of(arguments_of(*words))


def test_points_are_the_product_of_all_values_with_each_seed() -> None:
    found = points({"redundancy": [1, 2], "topology": ["grid", "ring"]}, seeds=2)
    assert [(point.point, point.seed) for point in found] == [(p, s) for p in range(4) for s in (1, 2)]
    assert found[2].parameters == {"redundancy": 1, "topology": "ring"}
    assert [point.seed for point in points({"a": [1]}, seeds=[7, 3, 7])] == [7, 3]
    assert points({}) == [SweepPoint(0, 1, {})]


@pytest.mark.parametrize(
    ("grid", "seeds", "reason"),
    [
        ({"a": []}, 1, "a has no value"),
        ({"Error": [1]}, 1, "its own Error"),
        ({"mean": [1]}, 1, "its own mean"),
        ({"a": [1]}, 0, "at least one seed"),
        ({"a": range(1_000), "b": range(1_000)}, 1, "1,000,000 runs"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(grid: Mapping[str, Any], seeds: int, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        points(grid, seeds)


def test_parameters_come_from_words_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text('seeds = [4, 5]\n[grid]\ntopology = "ring"\nnodes = [10, 20]\nloss = [0.0, 0.1]\n')
    found = parse("--grid", str(file), "--set", "nodes=30", "--set", "flag=true")
    assert [point.seed for point in found] == [4, 5] * 2
    assert found[2].parameters == {"topology": "ring", "nodes": 30, "loss": 0.1, "flag": True}
    found = parse("--grid", str(file), "--seeds", "1")
    assert len(found) == 4


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--set", "nodes"], '--set: "nodes" is not NAME=VALUE'),
        (["--set", "nodes="], "is not NAME=VALUE"),
        (["--seeds", "0"], "--seeds: "),
        (["--grid", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_words_that_say_nothing_are_refused(words: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse(*words)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("seeds = ", "Invalid value"),
        ("size = 3", "size is not known"),
        ("seeds = true", "seeds is a number or a list"),
        ("[grid]\nsize = [[1]]", "size is to have numbers"),
    ],
)
def test_a_file_that_is_no_grid_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_grid(file)


def test_the_simulators_parameters_are_checked_before_anything_runs() -> None:
    assert parameters_of({"nodes": 9, "failures": 0, "loss": 0, "seed": 3}).failures == ()
    check_points([{"nodes": 9, "failures": 2}])
    for point, reason in (
        ({"colour": 1}, "no parameter colour"),
        ({"nodes": 1.5}, "nodes is int"),
        ({"nodes": True}, "nodes is int"),
        ({"topology": "star"}, "no topology star"),
        ({"nodes": 1}, "at least 2 nodes"),
        ({"redundancy": -1}, "redundancy cannot be -1"),
    ):
        with pytest.raises(ConfigError, match=reason):
            check_points([point])


def test_federations_are_the_same_on_any_number_of_executors(spark: SparkSession, tmp_path: Path) -> None:
    wanted = points({"nodes": [9, 12], "redundancy": [1], "topology": ["ring"]}, seeds=1)
    alone = {
        (point.point, point.seed): run_point({**point.parameters, "seed": point.seed}) for point in wanted
    }
    words = ["--set", "nodes=9,12", "--set", "redundancy=1", "--set", "topology=ring"]
    head, *lines = run_sweep(spark, tmp_path, arguments_of(*words))
    assert head[:6] == ["nodes", "redundancy", "topology", "runs", "failed", "result"]
    assert len(lines) == 2 * len(alone[0, 1])
    table = spark.read.parquet(str(tmp_path / "sweep"))
    assert table.columns == ["point", "seed", "nodes", "redundancy", "topology", "results", "error"]
    rows = table.orderBy("point", "seed").collect()
    assert [row["error"] for row in rows] == [None] * 2
    assert {(row["point"], row["seed"]): row["results"] for row in rows} == alone
    one_task = job.sweep(spark, wanted, run_point, tasks=1).orderBy("point", "seed").collect()
    assert one_task == rows
    assert alone[0, 1]["delivered/whole"] == 1.0


def test_a_point_that_fails_leaves_the_others_alone_and_all_are_summed_up(spark: SparkSession) -> None:
    def run(parameters: Mapping[str, Any]) -> dict[str, float | None]:
        if parameters["kind"] == "bad" or parameters["seed"] == 4:
            raise ValueError(f"no {parameters['kind']} <today>")
        value = parameters["seed"] * parameters["scale"]
        return {"value": value, "square": value**2, "nothing": None}

    wanted = points({"kind": ["good", "bad"], "scale": [1, 2.5]}, seeds=4)
    runs = job.sweep(spark, wanted, run).cache()
    failed = {(row["point"], row["seed"]) for row in runs.where("error is not null").collect()}
    assert failed == {(point, seed) for point in (2, 3) for seed in (1, 2, 3, 4)} | {(0, 4), (1, 4)}
    errors = {row["error"] for row in runs.where("point = 2").collect()}
    assert errors == {"ValueError: no bad <today>"}
    lines = {(row["point"], row["result"]): row for row in job.aggregate(runs).collect()}
    runs.unpersist()
    assert set(lines) == {(0, "value"), (0, "square"), (1, "value"), (1, "square"), (2, None), (3, None)}
    found = lines[1, "value"]
    values = [2.5, 5.0, 7.5]
    half = 4.303 * stdev(values) / math.sqrt(3)
    assert (found["kind"], found["scale"]) == ("good", 2.5)
    assert (found["runs"], found["failed"], found["count"]) == (4, 1, 3)
    assert (found["mean"], found["median"], found["least"], found["most"]) == (mean(values), 5.0, 2.5, 7.5)
    assert found["p95"] == pytest.approx(7.25)
    assert (found["low"], found["high"]) == pytest.approx((5.0 - half, 5.0 + half))
    assert (lines[2, None]["failed"], lines[2, None]["mean"]) == (4, None)


def test_one_run_has_no_confidence(spark: SparkSession) -> None:
    runs = job.sweep(spark, points({"a": [1]}), lambda parameters: {"value": 3.0})
    (found,) = job.aggregate(runs).collect()
    assert (found["mean"], found["low"], found["high"]) == (3.0, None, None)
