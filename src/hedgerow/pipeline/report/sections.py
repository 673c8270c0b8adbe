"""What other packages add to the report: options of the command, sections, and how their tables are shown.

An entry point of the group `hedgerow.report_sections` is an object as `AddedSections` says. It is loaded to
parse the command line, so it imports what it needs when it is asked for it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hedgerow.pipeline.report.page import PageSection, TableSection


class AddedSections(Protocol):
    option: str
    """What asks for its sections, for people: `--results DIR`."""
    page: str
    """The report's file, beside the first of its places, where no other is named."""

    def add_arguments(self, add: Callable[..., object]) -> None:
        """`add` is `add_argument` of the report's options."""

    def places(self, arguments: Namespace) -> Sequence[Path]:
        """The directories that its sections are about; none: nobody asks for them."""

    def sections(self, spark: SparkSession, places: Sequence[Path]) -> Iterable[PageSection]:
        """They come before those of the tables. HedgerowError: a place cannot be used."""

    def tables(self) -> Mapping[str, TableSection]:
        """How tables are shown that it alone writes, by name."""


@cache
def added_sections() -> tuple[AddedSections, ...]:
    return tuple(each.load() for each in entry_points(group="hedgerow.report_sections"))
