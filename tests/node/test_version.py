"""Which Hedgerow this is, told the same everywhere."""

from __future__ import annotations

import tomllib

from hedgerow.node.version import VERSION
from tests.programs import ROOT


def test_it_is_the_package_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
