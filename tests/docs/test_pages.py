"""Every command of README.md, the guides and the pages of docs/ does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import SHOWN, read_blocks
from tests.docs.pages import MAX_NOT_RUN, NOT_RUN, NOT_TRIED, pages, path_of
from tests.docs.runner import run_blocks

COMMAND_LIKE = re.compile(
    r"^\s*(\$ |(\.venv/bin/)?hedgerow |mosquitto|make |python |curl |openssl )", re.MULTILINE
)


@pytest.mark.timeout(240)  # Spark, on a machine that is busy with other tests.
@pytest.mark.parametrize("page", pages())
def test_commands_do_what_the_page_says(page: str, tmp_path: Path) -> None:
    run_blocks(read_blocks(path_of(page), page), tmp_path)


def test_pages_that_are_not_tried_are_there() -> None:
    assert [page for page in NOT_TRIED if not path_of(page).exists()] == []


def test_the_first_steps_of_the_readme_are_four_commands() -> None:
    text = path_of("README.md").read_text()
    first_steps = text[text.index("## Four commands") : text.index("## Guides")]
    lines = re.findall(r"^(?:\$ )?(?:make|\.venv/bin/hedgerow) .*$", first_steps, re.MULTILINE)
    assert len(lines) == first_steps.count("```") / 2 == 4


def test_what_is_not_run_is_listed_with_its_reason() -> None:
    found = [
        (block.page, block.first_line)
        for page in pages()
        for block in read_blocks(path_of(page), page)
        if "no-run" in block.flags
    ]
    keys = [key for page, line in found for key in NOT_RUN if key[0] == page and line.startswith(key[1])]
    assert len(keys) == len(found), "each of them has one entry"
    assert set(keys) == NOT_RUN.keys()
    assert len(found) <= MAX_NOT_RUN


def test_no_command_hides_in_a_drawing() -> None:
    hidden = [
        block.where
        for page in pages()
        for block in read_blocks(path_of(page), page)
        if block.language in SHOWN and COMMAND_LIKE.search(block.text)
    ]
    assert hidden == []


def test_no_page_ends_processes_by_name() -> None:
    dangerous = re.compile(r"\b(pkill|pgrep|killall)\b|\bkill -1\b|\brm -rf? [/~]")
    found = [
        block.where
        for page in pages()
        for block in read_blocks(path_of(page), page)
        if "no-run" not in block.flags and dangerous.search(block.text)
    ]
    assert found == []  # A test that runs them would end processes of the person who runs the tests.
