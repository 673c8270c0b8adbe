"""Native code is used whole, and only while it is of the sources that are there; else all is plain Python.

That what is compiled does the same is for `make check-native`, which runs these tests on it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from hedgerow.native import LISTING, PACKAGE, Finder, State, digest_of, file_of, look

ROOT = Path(__file__).resolve().parent.parent


def load_builder() -> ModuleType:
    spec = spec_from_file_location("build_native", ROOT / "tools" / "build_native.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


builder = load_builder()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """One with native code that is of its sources."""
    package = tmp_path / "hedgerow"
    (package / "_native").mkdir(parents=True)
    (package / "a.py").write_text("A = 1\n")
    (package / "b.py").write_text("B = 1\n")
    sources = ["a.py", "b.py"]
    listing = {"digest": digest_of(sources, package), "modules": ["hedgerow.a"], "sources": sources}
    (package / "_native" / LISTING).write_text(json.dumps(listing))
    return package


def test_the_table_is_of_modules_that_exist() -> None:
    for pattern in builder.COMPILED:
        assert list(PACKAGE.glob(pattern)), pattern
    compiled, sources = builder.files_to_compile(PACKAGE)
    assert builder.PLAIN.keys() <= set(sources)
    assert not builder.PLAIN.keys() & set(compiled)
    assert {"broker/connection.py", "mqtt/decoder.py", "node/link.py", "topics.py"} <= set(compiled)
    for file in compiled:
        import_module("hedgerow." + file.removesuffix(".py").replace("/", "."))


def test_native_code_of_the_sources_is_used(package: Path) -> None:
    assert look(package / "_native", package) == State(frozenset({"hedgerow.a"}))
    assert look(package / "_native", package, "1").modules


@pytest.mark.parametrize("source", ["a.py", "b.py"])
def test_a_source_that_has_changed_makes_everything_plain(package: Path, source: str) -> None:
    """`b.py` is not compiled, and what is knows of it."""
    (package / source).write_text("A = 2\n")
    state = look(package / "_native", package)
    assert not state.modules
    assert state.is_stale
    assert str(state) == "plain Python"
    (package / source).unlink()
    assert look(package / "_native", package).is_stale


def test_plain_python_where_nothing_was_built_or_it_is_asked_for(package: Path, tmp_path: Path) -> None:
    assert look(package / "_native", package, "0") == State(reason="HEDGEROW_NATIVE=0")
    assert look(tmp_path / "_native", package) == State(reason="no native code was built")
    with pytest.raises(ImportError, match="no native code was built"):
        look(tmp_path / "_native", package, "1")


def test_compiled_modules_are_found_before_the_plain_ones(tmp_path: Path) -> None:
    finder = Finder(tmp_path, frozenset({"hedgerow.broker.pool"}))
    spec = finder.find_spec("hedgerow.broker.pool")
    assert spec is not None
    assert spec.origin == str(tmp_path / file_of("hedgerow.broker.pool"))
    assert finder.find_spec("hedgerow.broker.role") is None


def test_a_broker_runs_as_plain_python() -> None:
    """Whatever this test run has: without anything that is only there where code is compiled."""
    script = """\
import sys
sys.modules["mypy_extensions"] = None
import hedgerow.broker.dialled, hedgerow.node.server
assert str(hedgerow.native.STATE) == "plain Python", hedgerow.native.STATE
assert hedgerow.node.server.__file__.endswith(".py")
"""
    environment = {"HEDGEROW_NATIVE": "0", "PYTHONPATH": str(PACKAGE.parent)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


@pytest.mark.parametrize("error", [ImportError("no module named mypyc"), SystemExit(1), OSError("no gcc")])
def test_a_wheel_is_plain_where_nothing_can_be_compiled(error: BaseException) -> None:
    warnings: list[str] = []

    def build(root: Path) -> Path:
        raise error

    assert builder.build_for_wheel(ROOT, warnings.append, build) == {}
    assert len(warnings) == 1
    assert str(error) in warnings[0]


def test_a_wheel_has_what_was_compiled(package: Path) -> None:
    (package / "_native" / "hedgerow").mkdir()
    (package / "_native" / "hedgerow" / "a.so").touch()
    files = builder.build_for_wheel(ROOT, print, lambda root: package / "_native")
    assert set(files.values()) == {f"hedgerow/_native/{LISTING}", "hedgerow/_native/hedgerow/a.so"}
    assert all(Path(file).is_file() for file in files)
