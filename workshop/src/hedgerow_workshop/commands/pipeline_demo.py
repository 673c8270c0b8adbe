"""`hedgerow pipeline demo`: a farm's traffic, every job over it, and the report (`hedgerow_workshop.lab`)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.cli.option_values import positive

if TYPE_CHECKING:
    from hedgerow.pipeline.runner import Tell
    from hedgerow_workshop.lab.pipeline_demo import Opening

HELP = "demo         a farm's traffic, all jobs over it, and the report"
MAX_S = 3_600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("demo", "into a new directory: --out, or pipeline-demo").add_argument
    add("--seconds", metavar="N", type=positive(MAX_S), default=60.0, help="of farm traffic (60)")


def run(arguments: argparse.Namespace, opening: Opening, tell: Tell) -> int:
    """Status 1 when a message was lost or doubled."""
    from hedgerow_workshop.lab import pipeline_demo

    return pipeline_demo.run(arguments.seconds, arguments.out or Path("pipeline-demo"), opening, tell)
