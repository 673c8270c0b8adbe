"""Writes docs/reference from the code: `tools/make_reference.py`, or `--check` to say which are out of date.

Each page has a module in `reference_pages`. What the code knows (keys, defaults, ranges, options, counters,
kinds, sizes, limits) is read from it; what only people know (a description, a note) stands in those modules
beside the name that it is about, imported from the code, so that a name that is gone fails here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"


def make_pages() -> dict[str, str]:
    """The pages by the names of their files."""
    os.environ["HEDGEROW_NATIVE"] = "0"  # Compiled classes have no source to be read.
    from reference_pages import commands, configuration, frames, metrics, mosquitto, topics
    from reference_pages.live import look_at_nodes

    seen = look_at_nodes()
    return {
        "commands.md": commands.page(),
        "configuration.md": configuration.page(),
        "frames.md": frames.page(),
        "metrics.md": metrics.page(seen),
        "mosquitto.md": mosquitto.page(),
        "topics.md": topics.page(seen),
    }


def outdated(pages: dict[str, str], folder: Path) -> list[str]:
    """Names of files that are missing, are not as they would be made, or that nobody makes."""
    there = {path.name: path.read_text() for path in folder.glob("*.md")}
    return sorted(name for name in pages.keys() | there.keys() if pages.get(name) != there.get(name))


def main(words: list[str]) -> int:
    pages = make_pages()
    if words == ["--check"]:
        names = outdated(pages, FOLDER)
        for name in names:
            print(f"docs/reference/{name} is not what the code says: run make reference")
        return bool(names)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # for the nodes that the tests have; some packages bring `tests` too
    os.environ["COLUMNS"] = "100"  # argparse asks for it
    sys.exit(main(sys.argv[1:]))
