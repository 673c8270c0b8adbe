"""What the lab adds to `hedgerow pipeline report`: `--results DIR`, a section for each experiment that is
there, and how the table of a sweep is shown."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hedgerow.pipeline.report.page import PageSection, TableSection


class LabSections:
    option = "--results DIR"
    page = "experiments.html"  # An experiment has a report.html of its own.

    def add_arguments(self, add: Callable[..., object]) -> None:
        add(
            "--results",
            metavar="DIR",
            type=Path,
            action="append",
            default=[],
            help="of `hedgerow lab run --out DIR`; may be repeated",
        )

    def places(self, arguments: Namespace) -> Sequence[Path]:
        found: list[Path] = arguments.results
        return found

    def sections(self, spark: SparkSession, places: Sequence[Path]) -> Iterator[PageSection]:
        from hedgerow_workshop.lab.results.descriptions import sections_of
        from hedgerow_workshop.lab.results.gather import gather

        return sections_of(gather(spark, places))

    def tables(self) -> Mapping[str, TableSection]:
        from hedgerow_workshop.lab.sweep import job, section

        return {job.TABLE: section.SECTION}


SECTIONS = LabSections()
