"""Sections of the report about experiments, which other packages bring."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

from hedgerow.pipeline.report.page import Describe


def added_sections() -> Mapping[str, Describe]:
    """By the name of an experiment: entry points of the group `hedgerow.report_sections` are such tables."""
    return {
        name: describe
        for each in entry_points(group="hedgerow.report_sections")
        for name, describe in each.load().items()
    }
