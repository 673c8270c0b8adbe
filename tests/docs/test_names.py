"""Options, keys, metrics and words that the pages name are there; tables that should be whole are."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from functools import cache

import pytest

import hedgerow
from hedgerow import cli
from hedgerow.bridges.options import OPTIONS
from hedgerow.kinds import NODE
from hedgerow.pipeline.metrics import GAUGES
from tests.docs.markdown import without_blocks
from tests.parsers import actions_of
from tests.programs import ROOT

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if "decisions" not in path.parts
)
OF_OTHERS = {
    "--capath", "--ciphers", "--psk", "--proxy", "--unix", "--random-filter", "--remove-retained",  # others'
    "--help", "--version",
}  # fmt: skip


def quoted(page: str) -> Iterator[str]:
    """What stands in backticks, and in no block."""
    yield from re.findall(r"`([^`]+)`", without_blocks((ROOT / page).read_text()))


@cache
def options() -> frozenset[str]:
    parsers = [cli.make_parser(name) for name in cli.all_commands()]
    found: set[str] = set()
    while parsers:
        for action in actions_of(parsers.pop()):
            found.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES)
def test_options_are_those_of_some_command(page: str) -> None:
    named = {word for each in quoted(page) for word in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", each)}
    assert sorted(named - options() - OF_OTHERS) == []


@pytest.mark.parametrize("page", PAGES)
def test_keys_are_those_of_the_configuration(page: str) -> None:
    keys = {key.name for key in NODE.known_keys}
    sections = "|".join(sorted(NODE.tables))
    named = {
        found[0]
        for each in quoted(page)
        if (found := re.match(rf"(?:{sections})\.[a-z_]+(?=$| =)", each))
        and not each.endswith((".md", ".py"))
    }
    assert sorted(named - keys) == []


@pytest.mark.parametrize("page", PAGES)
def test_metrics_are_those_of_nodes_and_of_the_pipeline(page: str) -> None:
    known = set(quoted("docs/reference/metrics.md")) | {f"hedgerow_pipeline_{name}" for name in GAUGES}
    named = {each for each in quoted(page) if re.fullmatch(r"hedgerow_[a-z_]+[a-z]", each)}
    assert sorted(named - known) == []


def first_column(page: str, heading: str) -> set[str]:
    """The names in the first column of the table that follows a heading, or a line that begins so."""
    lines = (ROOT / page).read_text().partition(heading)[2].splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("| ---"))
    rows = []
    for line in lines[begin + 1 :]:
        if not line.startswith("|"):
            break
        rows.append(line.split("|")[1])
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_the_client_page_has_every_option_of_connect() -> None:
    parameters = set(inspect.signature(hedgerow.connect).parameters) - {"url"}
    assert first_column("docs/client.md", "### connect") == parameters


def test_the_bridges_page_has_every_word_of_a_section() -> None:
    assert first_column("docs/bridges.md", "`$hedgerow/` here.") == OPTIONS.keys()
