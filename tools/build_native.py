"""Compile the modules that a broker spends its time in: `make native`, or in a wheel by `hatch_build.py`.

mypyc makes C of the very sources that run as plain Python, and a C compiler makes one library of that, in
which calls from module to module are calls in C. It needs mypy, setuptools and a C compiler, and two minutes
of a processor. What is made goes into `src/hedgerow/_native`; `hedgerow/native.py` decides about its use.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

COMPILED = (
    "message.py",
    "topics.py",
    "rates.py",
    "duplicates.py",
    "mqtt/*.py",
    "mqtt/client/*.py",
    "broker/*.py",
    "log/*.py",
    "node/clock.py",
    "node/eventlog.py",
    "node/far_link.py",
    "node/history.py",
    "node/link.py",
    "node/listener.py",
    "node/message_log.py",
    "node/open_sockets.py",
    "node/poller.py",
    "node/server.py",
    "node/websocket.py",
)
"""In `src/hedgerow`."""

PLAIN = {
    "broker/role.py": "the rooms' roles are plain Python, and their classes have attributes of their own",
    "broker/roles.py": "as are those of the broker",
    "broker/observer.py": "observers too",
    "broker/source.py": "and sources",
    "broker/events.py": "mypyc does not know ClassVar in a dataclass",
}
"""Those among them that stay as they are, and why."""

LIBRARY = "hedgerow_native"
OPTIMIZED = "3"  # Without, what is compiled is as slow as plain Python.
# Calls from module to module need not go by way of a table that another library might change.
C_OPTIONS = () if sys.platform == "win32" else ("-fvisibility=hidden",)


def files_to_compile(package: Path) -> tuple[list[str], list[str]]:
    """What is compiled, and that with what it was compiled beside: paths in the package."""
    found = sorted(
        path.relative_to(package).as_posix()
        for pattern in COMPILED
        for path in package.glob(pattern)
        if path.name != "__init__.py"
    )
    return [file for file in found if file not in PLAIN], [*found, "compiling.py", "errors.py"]


def build(root: Path, optimized: str = OPTIMIZED) -> Path:
    """Compile; returns the folder that holds the result, and nothing else."""
    native = _load_native(root)
    compiled, sources = files_to_compile(native.PACKAGE)
    digest = native.digest_of(sources)
    modules = [f"hedgerow.{file.removesuffix('.py').replace('/', '.')}" for file in compiled]
    before = Path.cwd()
    with TemporaryDirectory() as work:
        os.chdir(native.PACKAGE.parent)  # The names of modules follow from their paths.
        try:
            _compile([f"hedgerow/{file}" for file in compiled], Path(work), optimized)
        finally:
            os.chdir(before)
        listing = {"digest": digest, "modules": [*modules, f"{LIBRARY}__mypyc"], "sources": sources}
        return _put_together(native, Path(work) / "lib", listing)


def _compile(files: list[str], work: Path, optimized: str) -> None:
    import setuptools  # first: mypyc builds with what is imported already
    from mypyc.build import mypycify

    (work / "mypy.ini").write_text("[mypy]\n")
    options = ["--config-file", str(work / "mypy.ini"), "--cache-dir", str(work / "mypy")]
    extensions = mypycify(
        [*options, *files],
        opt_level=optimized,
        multi_file=True,
        target_dir=str(work / "c"),
        group_name=LIBRARY,
    )
    for extension in extensions:
        extension.extra_compile_args += C_OPTIONS
    distribution = setuptools.Distribution({"name": LIBRARY, "ext_modules": extensions})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(work / "lib"), str(work / "objects")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()


def _load_native(root: Path) -> ModuleType:
    os.environ["HEDGEROW_NATIVE"] = "0"  # in this process
    sys.path.insert(0, str(root / "src"))
    return import_module("hedgerow.native")


def _put_together(native: ModuleType, built: Path, listing: dict[str, Any]) -> Path:
    """In a new folder: nodes may still run on the files of the one before."""
    folder: Path = native.FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    for module in listing["modules"]:
        target = folder / native.file_of(module)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(built / native.file_of(module), target)
    (folder / native.LISTING).write_text(json.dumps(listing, indent=1) + "\n")
    return folder


def build_for_wheel(
    root: Path, warn: Callable[[str], None], build: Callable[[Path], Path] = build
) -> dict[str, str]:
    """File → its place in the wheel. Nothing where it cannot be built: then the wheel is plain Python."""
    try:
        folder = build(root)
    except (Exception, SystemExit) as error:  # mypyc ends the process where it cannot compile
        warn(f"the wheel is plain Python, since native code could not be built: {error}")
        return {}
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): f"hedgerow/_native/{path.relative_to(folder).as_posix()}" for path in files}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="compile the modules that a broker spends its time in")
    parser.add_argument("--opt", default=OPTIMIZED, help=f"the C compiler's level (default: {OPTIMIZED})")
    print(f"native code is in {build(ROOT, parser.parse_args().opt)}")
