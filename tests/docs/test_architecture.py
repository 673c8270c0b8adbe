"""docs/architecture.md names files that are there, and every module of the parts that it has a table of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.programs import ROOT

PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "hedgerow"
WORKSHOP = ROOT / "workshop" / "src" / "hedgerow_workshop"
# As paths are written on the page: from a package, or from the repository.
PLACES = (SOURCE, WORKSHOP, ROOT)
TOPICS = {"DOMAIN/M/event", "field/1"}  # of the examples that the page follows
PATH = re.compile(r"(?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|toml|md)")


def tables() -> dict[str, list[str]]:
    """By the folder of a table "file in `X/`": the names in its first column."""
    found: dict[str, list[str]] = {}
    folder = None
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if heading := re.match(r"\| file in `([^`]+)/` \|", line):
            folder = heading[1]
        elif not line.startswith("|"):
            folder = None
        elif folder is not None and not cells[0].startswith("---"):
            within, _, rest = cells[0].rpartition(":")  # "`X/`: " says where those that follow are
            below = within.strip("`")
            found.setdefault(folder, []).extend(below + name for name in re.findall(r"`([^`]+)`", rest))
    return found


def place_of(folder: str) -> Path:
    """Where a table's folder is."""
    return next((place / folder for place in PLACES if (place / folder).is_dir()), SOURCE / folder)


@pytest.mark.parametrize("folder", tables())
def test_files_of_a_table_are_there(folder: str) -> None:
    there = place_of(folder)
    gone = [
        name
        for name in tables()[folder]
        if not any((there / f"{name}{ending}").exists() for ending in ("", ".py"))
    ]
    assert gone == []


@pytest.mark.parametrize("folder", tables())
def test_a_table_has_every_module_of_its_folder(folder: str) -> None:
    there = place_of(folder)
    modules = {
        path.relative_to(there).with_suffix("").as_posix()
        for pattern in ("*.py", "io/*.py")
        for path in there.glob(pattern)
        if path.stem != "__init__"
    }
    assert sorted(modules - set(tables()[folder])) == []


def test_paths_in_backticks_are_there() -> None:
    quoted = re.findall(r"`([^`\n]+)`", PAGE.read_text())
    named = {word for word in quoted if PATH.fullmatch(word)} - TOPICS
    # Paths that are relative to the part that a paragraph is about end like a file of it.
    files = {path.as_posix() for path in (ROOT / "src").rglob("*") if path.suffix != ".pyc"}
    files |= {
        path.as_posix()
        for folder in ("workshop/src", "tests", "tools", "examples", "docs")
        for path in (ROOT / folder).rglob("*")
    }
    gone = [
        word
        for word in named
        if not any((place / word).exists() for place in PLACES)
        and not any(file.endswith((f"/{word.rstrip('/')}", f"/{word}.py")) for file in files)
    ]
    assert sorted(gone) == []


def test_every_part_is_in_the_tree() -> None:
    tree = PAGE.read_text().partition("## The tree")[2].partition("\n## ")[0]
    packages = {path.parent for source in (SOURCE, WORKSHOP) for path in source.rglob("__init__.py")}
    # The lab's experiments are listed where it is written about, and `io/` is told of once for all rooms.
    named = {path for path in packages if path.parent != WORKSHOP / "lab" and path.name != "io"}
    assert sorted(path.name for path in named if f"{path.name}/" not in tree) == []


def test_methods_that_it_follows_are_there() -> None:
    """`Class.method`: there is such a class, and somewhere such a name in one."""
    named = set(re.findall(r"`([A-Z]\w+)\.(\w+)`", PAGE.read_text()))
    text = "\n".join(path.read_text() for source in (SOURCE, WORKSHOP) for path in source.rglob("*.py"))
    classes = set(re.findall(r"^class (\w+)", text, re.MULTILINE))
    members = set(re.findall(r"^    (?:async )?def (\w+)", text, re.MULTILINE))
    members |= set(re.findall(r"^    (\w+)(?:: | = )", text, re.MULTILINE)) | set(
        re.findall(r"self\.(\w+)", text)
    )
    assert sorted(f"{c}.{m}" for c, m in named if c not in classes or m not in members) == []
