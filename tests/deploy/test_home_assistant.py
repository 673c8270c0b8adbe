"""The add-on for Home Assistant: its options become a node that runs."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import ROOT, run_node

FOLDER = ROOT / "deploy/home-assistant/hedgerow"
HEDGEROW = [sys.executable, "-m", "hedgerow"]


def command_for(data: Path, **options: Any) -> list[str]:
    (data / "options.json").write_text(json.dumps({"id": "home", "users": [], "neighbours": []} | options))
    spec = spec_from_file_location("run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    command: list[str] = module.main(data, HEDGEROW)
    return command


def test_its_options_become_a_node(tmp_path: Path) -> None:
    users = [{"name": "anna", "password": "one"}, {"name": "ben", "password": "two"}]
    command = command_for(tmp_path, users=users, neighbours=["mqtt://barn.invalid"])
    assert command[:6] == [*HEDGEROW, "up", "--id", "home"]
    names = [line.split(":")[0] for line in (tmp_path / "passwords").read_text().splitlines()]
    assert names == ["anna", "ben"]
    ours = {"*:1883", "*:9001", "*:8780"}
    with run_node(
        tmp_path, *(word.replace("*", "127.0.0.1") for word in without_addresses(command[4:], ours))
    ) as node:
        assert "is up" in node.log


def without_addresses(words: list[str], addresses: set[str]) -> list[str]:
    """The system chooses ports here."""
    kept = []
    for flag, value in zip(words[::2], words[1::2], strict=True):
        if value not in addresses:
            kept += [flag, value]
    return kept


def test_it_serves_nobody_without_users(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="add a user"):
        command_for(tmp_path)


def test_every_option_is_explained() -> None:
    declared = yaml.safe_load((FOLDER / "config.yaml").read_text())
    explained = yaml.safe_load((FOLDER / "translations/en.yaml").read_text())
    assert declared["options"].keys() == declared["schema"].keys() == explained["configuration"].keys()
    assert declared["ports"].keys() == declared["ports_description"].keys() == explained["network"].keys()
