"""The files of bridges that a configuration names."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from hedgerow.bridges.config import BridgesConfig
from hedgerow.errors import ConfigError
from hedgerow.kinds import NODE
from hedgerow.node.config_loading import add_arguments, from_arguments, load_config


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("north.conf", "south.conf"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)


def files(text: str) -> tuple[Path, ...]:
    path = Path("node.toml")
    path.write_text(text)
    return load_config(path, {}, NODE).of(BridgesConfig).bridges


def test_files_in_a_file() -> None:
    assert files("") == ()
    assert files("bridges = 'north.conf'") == (Path("north.conf"),)
    assert files("bridges = ['north.conf', 'south.conf']") == (Path("north.conf"), Path("south.conf"))


def test_files_by_flags() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, NODE)
    given = parser.parse_args(["--bridge", "north.conf", "--bridge", "south.conf"])
    assert from_arguments(given, NODE).of(BridgesConfig).bridges == (Path("north.conf"), Path("south.conf"))


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^node\.toml:1: bridges: nowhere: No such file or directory$"):
        files("bridges = ['north.conf', 'nowhere']")
