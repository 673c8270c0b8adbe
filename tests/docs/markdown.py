"""The fenced blocks of a Markdown page, each with what its info string says.

GitHub shows the code of a block and colours it by the first word of the info string; the words after that
are for the tests alone, and `runner` says what they mean.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

RUN = ("sh", "console", "python")
CHECKED = ("toml", "json")
SHOWN = ("text", "mermaid")
"""Drawings and layouts of bytes. What looks like a command in one is an error."""
FLAGS = ("no-run", "eventually", "fails")
KEYS = ("terminal", "until", "host", "file")

_FENCED = re.compile(r"^( *)(`{3,}).*?^\1\2`*\s*$", re.MULTILINE | re.DOTALL)


class PageError(AssertionError):
    """A page breaks the conventions, or does not do what it says."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    """Of the opening fence, from 1."""
    language: str
    flags: frozenset[str]
    options: dict[str, str]
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def first_line(self) -> str:
        return next((line.strip() for line in self.text.splitlines() if line.strip()), "")


def without_blocks(text: str) -> str:
    """A page's text, without what stands in fenced blocks."""
    return _FENCED.sub("", text)


def read_blocks(path: Path, name: str) -> list[Block]:
    """All fenced blocks in order. An indented code block is an error: nothing could say how to run it."""
    blocks: list[Block] = []
    lines = path.read_text().splitlines()
    number = 0
    after_blank = True
    in_list = False
    while number < len(lines):
        line = lines[number]
        number += 1
        stripped = line.lstrip()
        if stripped.startswith("```"):
            opened_at, indent = number, len(line) - len(stripped)
            fence = stripped[: len(stripped) - len(stripped.lstrip("`"))]
            body: list[str] = []
            while number < len(lines) and lines[number].strip() != fence:
                body.append(lines[number][indent:])
                number += 1
            if number == len(lines):
                raise PageError(f"{name}:{opened_at}: a block that does not end")
            number += 1
            blocks.append(_block(name, opened_at, stripped[len(fence) :], body))
            after_blank = False
            continue
        if line and not line[0].isspace():
            in_list = stripped.startswith(("- ", "* ")) or stripped.split(".")[0].isdigit()
        if line.startswith("    ") and after_blank and not in_list:
            raise PageError(f"{name}:{number}: code by indentation; use a fenced block")
        after_blank = not stripped
    return blocks


def _block(page: str, line: int, info: str, body: list[str]) -> Block:
    where = f"{page}:{line}"
    words = shlex.split(info)
    if not words:
        raise PageError(f"{where}: a block without a language; use {', '.join((*RUN, *CHECKED, *SHOWN))}")
    flags: set[str] = set()
    options: dict[str, str] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if equals and key in KEYS:
            options[key] = value
        elif word in FLAGS:
            flags.add(word)
        else:
            raise PageError(f"{where}: {word!r} means nothing; there are {', '.join((*FLAGS, *KEYS))}")
    block = Block(page, line, words[0], frozenset(flags), options, "".join(f"{each}\n" for each in body))
    known = (*RUN, *CHECKED, *SHOWN)
    if block.language not in known and "file" not in options and "no-run" not in flags:
        raise PageError(f"{where}: {block.language} is neither run nor checked; it needs file= or no-run")
    if block.language == "sh" and "terminal" in options and "until" not in options and "no-run" not in flags:
        raise PageError(f"{where}: a terminal needs until=: what it prints when it is ready")
    return block
