"""Every link between Markdown pages leads to a file that is there, and to a heading that it has."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.markdown import without_blocks
from tests.programs import ROOT

LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|<(?:img|a)\b[^>]*\b(?:src|href)=\"([^\"]+)\"")
CODE = re.compile(r"`[^`\n]+`")


def markdown_pages() -> list[str]:
    """Those that are kept, and those that are new."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    # Without a repository, as in a source archive: what there is.
    found = listed or [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    return sorted(name for name in set(found) if (ROOT / name).exists())


@cache
def anchors(path: Path) -> frozenset[str]:
    """As GitHub makes them from headings: the second of the same name gets -1."""
    text = without_blocks(path.read_text())
    seen: Counter[str] = Counter()
    found = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#{1,6} +(.+?)(?: +#+)?$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(found)


def broken(path: Path) -> list[str]:
    text = CODE.sub("", without_blocks(path.read_text()))
    wrong = []
    for target in (first or second for first, second in LINK.findall(text)):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue  # Elsewhere: what is there today says nothing of tomorrow.
        name, _, anchor = unquote(target).partition("#")
        there = (path.parent / name) if name else path
        is_missing = (
            bool(anchor) and there.suffix == ".md" and there.exists() and anchor not in anchors(there)
        )
        if not there.exists() or is_missing:
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", markdown_pages())
def test_links_lead_somewhere(page: str) -> None:
    assert broken(ROOT / page) == []


def test_what_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# One `thing`\n## Twice\n## Twice\n```text\n# not a heading\n```\n")
    page = tmp_path / "page.md"
    right = (
        "[a](other.md) [b](other.md#one-thing) [c](other.md#twice-1) [d](#here) [e](https://example.com/x)"
    )
    wrong = "[f](gone.md) [g](other.md#two) [h](other.md#not-a-heading) [i](#there)"
    page.write_text(f"# Here\n{right}\n{wrong}\n`[j](gone.md)`\n```\n[k](gone.md)\n```\n")
    assert broken(page) == ["gone.md", "other.md#two", "other.md#not-a-heading", "#there"]
