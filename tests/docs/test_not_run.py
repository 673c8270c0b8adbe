"""What a page shows and no test can run is at least right as far as that can be seen without running it."""

from __future__ import annotations

import shlex

import pytest

from hedgerow import cli
from hedgerow.errors import ConfigError
from tests.docs.markdown import Block, read_blocks
from tests.docs.pages import pages, path_of


def not_run() -> list[Block]:
    blocks = (block for page in pages() for block in read_blocks(path_of(page), page))
    return [block for block in blocks if "no-run" in block.flags]


def commands(block: Block) -> list[list[str]]:
    """The words of each `hedgerow` command in it."""
    script = block.text.replace("\\\n", " ")
    if block.language == "console":
        script = "\n".join(line[2:] for line in script.splitlines() if line.startswith("$ "))
    lines = (shlex.split(line, comments=True) for line in script.splitlines())
    return [words[1:] for words in lines if words and words[0].rpartition("/")[2] == "hedgerow"]


def check(block: Block) -> None:
    """Raises ConfigError for an option or a word that is not there, SyntaxError for what is no Python."""
    if block.language == "python":
        compile(block.text, block.where, "exec")
    elif block.language in ("sh", "console"):
        for name, *words in commands(block):
            if name not in cli.all_commands():
                raise ConfigError(f"{block.where}: there is no hedgerow {name}")
            cli.make_parser(name).parse(words)


@pytest.mark.parametrize("block", not_run(), ids=lambda block: block.where)
def test_commands_and_options_are_there(block: Block) -> None:
    check(block)


@pytest.mark.parametrize(
    "text",
    [
        "hedgerow bench broker --quik\n",
        "hedgerow bensch broker\n",
        "make x\nhedgerow lab run spohn \\\n  --fastt\n",
    ],
)
def test_what_is_not_there_is_found(text: str) -> None:
    with pytest.raises(ConfigError):
        check(Block("page.md", 1, "sh", frozenset({"no-run"}), {}, text))


def test_what_is_no_python_is_found() -> None:
    with pytest.raises(SyntaxError):
        check(Block("page.md", 1, "python", frozenset({"no-run"}), {}, "spark.read.\n"))
