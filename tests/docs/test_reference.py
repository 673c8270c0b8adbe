"""docs/reference is what `tools/make_reference.py` makes of the code as it is now."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.programs import ROOT

TOOL = ROOT / "tools" / "make_reference.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_what_the_code_says() -> None:
    """In a process of its own: it starts nodes, and what else was imported here must not matter."""
    command = [sys.executable, str(TOOL), "--check"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (made.stdout, made.stderr, made.returncode) == ("", "", 0)


def test_a_page_that_is_changed_missing_or_left_over_is_outdated(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "right.md").write_text("right")
    (tmp_path / "changed.md").write_text("changed by hand")
    (tmp_path / "left.md").write_text("nobody makes it")
    pages = {"right.md": "right", "changed.md": "changed", "missing.md": "new"}
    assert tool.outdated(pages, tmp_path) == ["changed.md", "left.md", "missing.md"]


@pytest.mark.parametrize("name", ["commands", "configuration", "frames", "metrics", "topics"])
def test_pages_hold_nothing_of_this_machine(name: str) -> None:
    text = (ROOT / "docs" / "reference" / f"{name}.md").read_text()
    assert [word for word in (str(ROOT), str(Path.home()), "object at 0x", "<function") if word in text] == []
