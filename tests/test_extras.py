"""What is said to type must work where it is typed."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import pytest

from hedgerow.extras import install_command

PIP = [sys.executable, "-m", "pip", "install"]


class Installed(Distribution):
    """With what pip told of where it came from."""

    def __init__(self, told: dict[str, object] | None) -> None:
        self._text = None if told is None else json.dumps(told)

    def read_text(self, filename: str) -> str | None:
        assert filename == "direct_url.json"
        return self._text

    def locate_file(self, path: object) -> Path:
        raise NotImplementedError


def command_of(told: dict[str, object] | None) -> str:
    return install_command("spark", lambda name: Installed(told))


@pytest.mark.parametrize(("dir_info", "options"), [({"editable": True}, ["-e"]), ({}, [])])
def test_a_folder_is_named_again(dir_info: dict[str, bool], options: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "our hedgerow"
    folder.mkdir()
    command = command_of({"url": folder.as_uri(), "dir_info": dir_info})
    assert shlex.split(command) == [*PIP, *options, f"{folder}[spark]"]


def test_what_came_from_elsewhere_is_asked_for_by_name(tmp_path: Path) -> None:
    by_name = shlex.join([*PIP, "hedgerow[spark]"])
    assert by_name.endswith("pip install 'hedgerow[spark]'"), "a shell would take it for a pattern of files"
    assert command_of(None) == by_name
    assert command_of({"url": "https://example.org/hedgerow.whl", "archive_info": {}}) == by_name
    assert command_of({"url": (tmp_path / "gone").as_uri(), "dir_info": {}}) == by_name


def test_a_source_that_was_never_installed_is_installed_in_place() -> None:
    def find_nothing(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    source = Path(__file__).resolve().parent.parent
    assert shlex.split(install_command("lake", find_nothing)) == [*PIP, "-e", f"{source}[lake]"]
    assert shlex.split(install_command("lake", find_nothing, source / "src")) == [*PIP, "hedgerow[lake]"]


def test_every_part_that_is_named_can_be_installed() -> None:
    import tomllib

    from hedgerow.cli.doctor import EXTRAS

    source = Path(__file__).resolve().parent.parent
    offered = tomllib.loads((source / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*EXTRAS, "spark", "lake"} <= offered.keys()
