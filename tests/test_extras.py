"""What is said to type must work where it is typed."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from hedgerow import extras
from hedgerow.extras import install_command

PIP = [sys.executable, "-m", "pip", "install"]


def installed_from(told: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = None if told is None else json.dumps(told)
    monkeypatch.setattr(extras, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))


@pytest.mark.parametrize(("dir_info", "options"), [({"editable": True}, ["-e"]), ({}, [])])
def test_a_folder_is_named_again(
    dir_info: dict[str, bool], options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "our hedgerow"
    folder.mkdir()
    installed_from({"url": folder.as_uri(), "dir_info": dir_info}, monkeypatch)
    assert shlex.split(install_command("spark")) == [*PIP, *options, f"{folder}[spark]"]


def test_what_came_from_elsewhere_is_asked_for_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = shlex.join([*PIP, "hedgerow[spark]"])
    assert by_name.endswith("pip install 'hedgerow[spark]'"), "a shell would take it for a pattern of files"
    installed_from(None, monkeypatch)
    assert install_command("spark") == by_name
    installed_from({"url": "https://example.org/hedgerow.whl", "archive_info": {}}, monkeypatch)
    assert install_command("spark") == by_name
    installed_from({"url": (tmp_path / "gone").as_uri(), "dir_info": {}}, monkeypatch)
    assert install_command("spark") == by_name


def test_a_source_that_was_never_installed_is_installed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", find_nothing)
    source = Path(__file__).resolve().parent.parent
    assert shlex.split(install_command("lake")) == [*PIP, "-e", f"{source}[lake]"]
    monkeypatch.setattr(extras, "SOURCE", source / "src")
    assert shlex.split(install_command("lake")) == [*PIP, "hedgerow[lake]"]


def test_every_part_that_is_named_can_be_installed() -> None:
    import tomllib

    from hedgerow.cli.doctor import EXTRAS

    source = Path(__file__).resolve().parent.parent
    offered = tomllib.loads((source / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*EXTRAS, "spark", "lake"} <= offered.keys()
