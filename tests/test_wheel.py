"""The user's wheel: the product alone, which runs where there is no workshop; the workshop plugs into it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORKSHOP = "hedgerow_workshop"
# Spark looks for data sources in packages whose names begin with `pyspark_`.
PACKAGES = ("hedgerow", "pyspark_hedgerow", "pyspark_hedgerow_table")
GROUPS = ("hedgerow.commands", "hedgerow.report_sections")

# Without the packages' entry points, and without the workshop's modules.
ALONE = f"""\
import importlib.metadata, sys
importlib.metadata.entry_points = lambda **_: ()
sys.modules["{WORKSHOP}"] = None
from hedgerow.cli import COMMANDS, main
assert main(["--help"]) == 0
for name in COMMANDS:
    assert main([name, "--help"]) == 0, name
sys.exit(main(["pipeline", "report"]))
"""


def project(folder: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def test_the_wheel_holds_the_product_alone() -> None:
    """Hatch takes what these name, and nothing else."""
    assert project("")["tool"]["hatch"]["build"].keys() == {"targets"}
    assert project("")["tool"]["hatch"]["build"]["targets"]["wheel"] == {
        "packages": [f"src/{name}" for name in PACKAGES],
        "hooks": {"custom": {}},
    }
    assert "entry-points" not in project("")["project"]
    there = {path.name for path in (ROOT / "src").iterdir() if path.suffix != ".egg-info"}
    assert there == set(PACKAGES)


def test_the_product_holds_no_workshop() -> None:
    workshop = {path.name for path in (ROOT / "workshop/src" / WORKSHOP).iterdir() if path.is_dir()}
    assert {"bench", "commands", "demo", "lab", "sim"} <= workshop
    product = {path.name for path in (ROOT / "src/hedgerow").iterdir()} - {"__pycache__"}
    assert not workshop & product
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert [str(path) for path in files if WORKSHOP.encode() in path.read_bytes()] == []


def test_the_product_runs_without_the_workshop() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("hedgerow pipeline: a report is about --tables PLACE\n")
    for word in ("hedgerow lab", "hedgerow demo", "--results", "simulator"):
        assert word not in ended.stdout


@pytest.mark.parametrize("group", GROUPS)
def test_what_the_workshop_adds_is_there(group: str) -> None:
    for name, target in project("workshop")["project"]["entry-points"][group].items():
        module, _, attribute = target.partition(":")
        found = import_module(module)
        assert not attribute or hasattr(found, attribute), name
