"""What a sweep runs: one configuration of the simulated federation, from named parameters to named results;
and how people say which ones (`--set`, `--grid`).

Parameters are those of `sim.simulation.Parameters`, with these words: `nodes` is another name of `size`,
and `failures` is one number of dead brokers, or 0 for none. Results are the figures of `Measured`; what was
delivered is `delivered/whole`, `delivered/k1/recovered` and so on, and the times of repair `repaired/k1`.
"""

from __future__ import annotations

import tomllib
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.sweep import job
from hedgerow_workshop.sim.configuration import run_configuration
from hedgerow_workshop.sim.simulation import Measured, Parameters
from hedgerow_workshop.sim.topologies import TOPOLOGIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS: Mapping[str, Any] = {"topology": "grid", "size": 100, "failures": 1}
SYNONYMS = {"nodes": "size"}
FIGURES = (
    "links", "converged_after_s", "late_changes", "mesh", "messages_per_link", "announcements",
    "control_packets", "control_bytes", "stretch_mean", "stretch_max", "copies_per_arrival", "events",
    "simulated_s",
)  # fmt: skip

_TYPES = {"int": int, "float": float, "str": str}
_KINDS = {each.name: _TYPES.get(str(each.type), int) for each in fields(Parameters)}


def run_sweep(spark: SparkSession, tables: str | Path, arguments: Namespace) -> list[list[str]]:
    """What the words of the command ask for (`hedgerow pipeline sweep`): the table `sweep`, and the lines of
    what came of it. ConfigError: they ask for what cannot be run; nothing has been run then."""
    points = points_of(arguments)
    check_points(point.parameters for point in points)
    runs = job.write(spark, tables, points, run_point)
    return job.lines(job.aggregate(runs))


def points_of(arguments: Namespace) -> list[job.SweepPoint]:
    """ConfigError: what is wrong with the arguments or the file."""
    grid, seeds = read_grid(arguments.grid) if arguments.grid is not None else ({}, 1)
    for name, values in arguments.set:
        grid[name] = [_read_value(value) for value in values]
    if arguments.seeds is not None:
        seeds = arguments.seeds
    return job.points(grid, seeds)


def read_grid(path: Path) -> tuple[dict[str, Sequence[job.Value]], int | list[int]]:
    """`seeds = 5` or a list of them, and `[grid]` with a value or a list of values for each parameter."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if unknown := document.keys() - {"seeds", "grid"}:
        raise ConfigError(f"{path}: {min(unknown)} is not known; there are seeds and [grid]")
    seeds = document.get("seeds", 1)
    if not all(type(seed) is int for seed in (seeds if isinstance(seeds, list) else [seeds])):
        raise ConfigError(f"{path}: seeds is a number or a list of numbers")
    grid: dict[str, Sequence[job.Value]] = {}
    for name, given in document.get("grid", {}).items():
        values = given if isinstance(given, list) else [given]
        if not all(isinstance(value, bool | int | float | str) for value in values):
            raise ConfigError(f"{path}: {name} is to have numbers, words, true or false")
        grid[name] = values
    return grid, seeds


def _read_value(text: str) -> job.Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text)


def run_point(point: Mapping[str, Any]) -> dict[str, float | None]:
    return results_of(run_configuration(parameters_of(point)))


def parameters_of(point: Mapping[str, Any]) -> Parameters:
    """ConfigError: a name that is none, or a value that it cannot have."""
    given = dict(DEFAULTS)
    for name, value in point.items():
        full_name = SYNONYMS.get(name, name)
        if full_name not in _KINDS:
            names = ", ".join([*_KINDS, *SYNONYMS])
            raise ConfigError(f"the simulator has no parameter {name}; it has {names}")
        kind = _KINDS[full_name]
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
            raise ConfigError(f"{name} is {kind.__name__}, not {value!r}")
        given[full_name] = value
    if given["topology"] not in TOPOLOGIES:
        raise ConfigError(f"no topology {given['topology']}; there are {', '.join(TOPOLOGIES)}")
    if given["size"] < 2:
        raise ConfigError(f"a federation has at least 2 nodes, not {given['size']}")
    for name in set(given) - {"topology", "seed"}:
        if given[name] < 0:
            raise ConfigError(f"{name} cannot be {given[name]}")
    count = given["failures"]
    return Parameters(**{**given, "failures": (count,) if count else ()})


def check_points(points: Iterable[Mapping[str, Any]]) -> None:
    """Before anything is run, what no executor could run. ConfigError."""
    for point in points:
        parameters_of(point)


def results_of(measured: Measured) -> dict[str, float | None]:
    results: dict[str, float | None] = {name: getattr(measured, name) for name in FIGURES}
    results |= {f"delivered/{kind}": share for kind, share in measured.deliveries.items()}
    results |= {f"repaired/k{count}": after_s for count, after_s in measured.repaired_after_s.items()}
    return results
