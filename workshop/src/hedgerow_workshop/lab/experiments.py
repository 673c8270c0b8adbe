"""The experiments that `hedgerow lab run NAME` knows, and the form that all of them keep.

An experiment is a module with `run(Request) -> Result`. Its result is rows: a figure of ours beside the one
that was published, if there is one. They become a table on the terminal and a JSON file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hedgerow.errors import HedgerowError

EXPERIMENTS: dict[str, tuple[str, str]] = {
    "morales": (
        "hedgerow_workshop.lab.morales.experiment",
        "brokers that move: they keep the topics that are hot",
    ),
    "schmitt": (
        "hedgerow_workshop.lab.schmitt.experiment",
        "bridges that come and go: five brokers, three leave",
    ),
    "scale": ("hedgerow_workshop.lab.scale", "the federation as it grows: simulated, up to 10,000 brokers"),
    "spohn": (
        "hedgerow_workshop.lab.spohn.experiment",
        "brokers that federate: a grid of nine, whole and failing",
    ),
    "storm": (
        "hedgerow_workshop.lab.storm.experiment",
        "clients handed over all the time: a topic goes hot and cold",
    ),
}


class LabError(HedgerowError):
    """An experiment that could not be carried out; the text says which part of it, and why."""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    unit: str
    ours: float | None
    """None: it could not be measured here; the result's notes say why."""
    published: float | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What an experiment is asked for."""

    fast: bool = False
    """Within a minute, and less exact."""
    out: Path | None = None
    """Where the report goes."""
    broker: str = "hedgerow"
    timeline: Path | None = None
    """None: the experiment's own."""
    say: Callable[[str], None] = lambda text: None
    """Told what is being done, while it is."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """What the experiment is to have other than by itself, by the setting's name."""


@dataclass(frozen=True, slots=True)
class Result:
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    """What a reader of the rows should know."""
    report: Path | None = None


def write_json(path: Path, result: Result) -> None:
    document = {"rows": [asdict(row) for row in result.rows]}
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
