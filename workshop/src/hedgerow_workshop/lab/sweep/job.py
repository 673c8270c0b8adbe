"""`sweep`: runs of a simulator for every point of a grid of parameters, spread over executors.

A point is a set of parameters, and is run once for each seed. `run` is a function of the parameters of one
run (the seed among them) to its results, named numbers; it is sent to the executors, so it must be one that
can be pickled, and the outcome may depend on nothing but what it is given: then the table is the same
whatever the number of executors. A run that raises becomes a row with its error, and the others go on.

Runs, the table `sweep/`, one row a run:

| column | |
| --- | --- |
| point | long, the number of the point in the grid |
| seed | long |
| … | one column for each parameter, with the narrowest type that holds all its values |
| results | map of string to double, sorted by name; empty for a run that failed |
| error | string, null for a run that did not fail |

`aggregate`, one row for each point and result: point, the parameters, runs and failed (of the point), result
(its name; null where all runs failed), count (of its values), mean, deviation (of the sample), low and high
(95 % confidence interval of the mean, by Student's t), median, p95, least, most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as sql

from hedgerow.errors import ConfigError
from hedgerow.pipeline.tables import read_table, replace_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLE = "sweep"
OWN_COLUMNS = ("point", "seed", "results", "error")
AGGREGATED = (
    "point", "runs", "failed", "result", "count", "mean", "deviation", "low", "high", "median", "p95",
    "least", "most",
)  # fmt: skip
MAX_RUNS = 100_000  # A grid grows with the product of what is asked for: one word too many is days of work.
TASKS_PER_CORE = 4  # Points differ in what they cost; small tasks leave no core without work at the end.
MAX_ERROR = 2_000  # characters of it

Value = bool | int | float | str
Parameters = Mapping[str, Value]
Run = Callable[[Parameters], Mapping[str, float | None]]


class SweepPoint(NamedTuple):
    """One run that is to be made."""

    point: int
    seed: int
    parameters: dict[str, Value]
    """Without the seed."""


# What is to be run


def points(grid: Mapping[str, Sequence[Value]], seeds: int | Sequence[int] = 1) -> list[SweepPoint]:
    """Every combination of the values, in the order in which they are given, with each seed (a number: the
    seeds from 1 on)."""
    numbers = list(range(1, seeds + 1)) if isinstance(seeds, int) else list(dict.fromkeys(seeds))
    if not numbers:
        raise ConfigError("a sweep takes at least one seed")
    for name, values in grid.items():
        if name.lower() in (*OWN_COLUMNS, *AGGREGATED):  # Spark sees no difference in case.
            raise ConfigError(f"a sweep has its own {name}; give the parameter another name")
        if not values:
            raise ConfigError(f"the parameter {name} has no value")
    count = math.prod(map(len, grid.values())) * len(numbers)
    if count > MAX_RUNS:
        raise ConfigError(f"the grid has {count:,} runs, more than {MAX_RUNS:,}; leave some values out")
    return [
        SweepPoint(index, seed, dict(zip(grid, combination, strict=True)))
        for index, combination in enumerate(product(*grid.values()))
        for seed in numbers
    ]


def sweep(spark: SparkSession, points: Sequence[SweepPoint], run: Run, tasks: int | None = None) -> DataFrame:
    """The runs, in so many tasks (default: a few for each core). Lazy: each use of it runs everything anew,
    so write it first (`write`)."""
    types = _types(points)
    wanted = tasks or TASKS_PER_CORE * spark.sparkContext.defaultParallelism
    tasks = max(1, min(len(points), wanted))
    # Neighbours in a grid cost alike: the dear ones are dealt out among the tasks.
    shares = [points[first::tasks] for first in range(tasks)]
    parameters = [f"{_quoted(name)} {kind}" for name, kind in types.items()]
    schema = ", ".join(
        ["point long", "seed long", *parameters, "results map<string, double>", "error string"]
    )
    numbers = spark.range(0, tasks, 1, tasks)
    return numbers.mapInArrow(partial(_run_shares, shares=shares, types=types, run=run), schema)


def _types(points: Sequence[SweepPoint]) -> dict[str, str]:
    names = points[0].parameters if points else {}
    return {name: _type_of({type(point.parameters[name]) for point in points}) for name in names}


def _type_of(kinds: set[type]) -> str:
    for name, allowed in (("boolean", {bool}), ("long", {int}), ("double", {int, float})):
        if kinds <= allowed:
            return name
    return "string"


# On an executor


def _run_shares(
    batches: Iterator[Any], shares: Sequence[Sequence[SweepPoint]], types: Mapping[str, str], run: Run
) -> Iterator[Any]:
    import pyarrow as pa

    arrow = {"boolean": pa.bool_(), "long": pa.int64(), "double": pa.float64(), "string": pa.string()}
    parameters = [(name, arrow[kind]) for name, kind in types.items()]
    results = ("results", pa.map_(pa.string(), pa.float64()))
    schema = pa.schema(
        [("point", pa.int64()), ("seed", pa.int64()), *parameters, results, ("error", pa.string())]
    )
    for batch in batches:
        for number in batch.column(0).to_pylist():
            rows = [_run_one(point, types, run) for point in shares[number]]
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _run_one(point: SweepPoint, types: Mapping[str, str], run: Run) -> dict[str, Any]:
    shown = {
        name: str(value) if types[name] == "string" else value for name, value in point.parameters.items()
    }
    row: dict[str, Any] = {"point": point.point, "seed": point.seed, **shown, "results": [], "error": None}
    try:
        results = run({**point.parameters, "seed": point.seed})
        row["results"] = [
            (name, None if value is None else float(value)) for name, value in sorted(results.items())
        ]
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:MAX_ERROR]
    return row


# What came of it

# Two-sided 95 % quantiles of Student's t, by degrees of freedom from 1; beyond them, the normal one.
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL = 1.960


def parameters_of(runs: DataFrame) -> list[str]:
    return [name for name in runs.columns if name not in OWN_COLUMNS]


def aggregate(runs: DataFrame) -> DataFrame:
    """See above. Ordered by point and result."""
    of_point = runs.groupBy("point", *map(_quoted, parameters_of(runs))).agg(
        sql.count("*").alias("runs"), sql.count("error").alias("failed")
    )
    values = runs.select("point", sql.explode("results").alias("result", "value")).where(
        sql.col("value").isNotNull()
    )
    half = _student(sql.col("count")) * sql.col("deviation") / sql.sqrt("count")
    statistics = (
        values.groupBy("point", "result")
        .agg(
            sql.count("value").alias("count"),
            sql.avg("value").alias("mean"),
            sql.stddev_samp("value").alias("deviation"),
            sql.percentile("value", 0.5).alias("median"),
            sql.percentile("value", 0.95).alias("p95"),
            sql.min("value").alias("least"),
            sql.max("value").alias("most"),
        )
        .select(
            "point", "result", "count", "mean", "deviation",
            (sql.col("mean") - half).alias("low"), (sql.col("mean") + half).alias("high"),
            "median", "p95", "least", "most",
        )
    )  # fmt: skip
    return of_point.join(statistics, on="point", how="left").orderBy("point", "result")


def _student(count: Column) -> Column:
    quantiles = sql.array(*(sql.lit(quantile) for quantile in _STUDENT))
    few = sql.try_element_at(quantiles, (count - 1).cast("int"))
    return sql.when(count > 1, sql.coalesce(few, sql.lit(_NORMAL)))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def write(spark: SparkSession, tables: str | Path, points: Sequence[SweepPoint], run: Run) -> DataFrame:
    """Make the runs, put them into the table in place of those that were there, and give the table."""
    replace_table(sweep(spark, points, run), str(tables), TABLE)
    return read_table(spark, str(tables), TABLE)


def lines(aggregated: DataFrame) -> list[list[str]]:
    """For the terminal and the report: a line for each point and result, with a head."""
    parameters = [name for name in aggregated.columns if name not in AGGREGATED]
    shown = [*parameters, *(name for name in AGGREGATED if name not in ("point", "deviation"))]
    return [shown, *([_text(row[name]) for name in shown] for row in aggregated.collect())]


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
