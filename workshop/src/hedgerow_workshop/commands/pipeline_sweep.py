"""`hedgerow pipeline sweep`: run the simulator for many parameters, spread over Spark's executors."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.cli.option_values import whole
from hedgerow.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hedgerow.pipeline.runner import Tell

HELP = "sweep        run the simulator for many parameters, spread over the executors"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("sweep", "which runs of the simulator are made").add_argument
    add(
        "--set",
        type=_read_grid_line,
        metavar="NAME=V,V…",
        action="append",
        default=[],
        help="a parameter and its values",
    )
    add("--grid", metavar="FILE", type=Path, help="parameters and seeds (TOML); --set goes before")
    add("--seeds", metavar="N", type=whole(1), help="runs of each point (1)")


def run(
    arguments: argparse.Namespace, opening: Callable[[], AbstractContextManager[SparkSession]], tell: Tell
) -> int:
    from hedgerow_workshop.lab.harness.rows import text_table
    from hedgerow_workshop.lab.sweep import simulated

    if arguments.tables is None:
        raise ConfigError("where does the result go? Give --tables DIR")
    simulated.check_points(point.parameters for point in simulated.points_of(arguments))
    with opening() as spark:
        print(text_table(simulated.run_sweep(spark, arguments.tables, arguments)))
    return 0


def _read_grid_line(text: str) -> tuple[str, list[str]]:
    name, _, values = text.partition("=")
    if not name or not values:
        raise ConfigError(f'"{text}" is not NAME=VALUE,VALUE such as redundancy=1,2,3')
    return name, values.split(",")
