"""Imports point one way, as docs/architecture.md draws it.

Every import statement counts, wherever it stands: inside a function or under TYPE_CHECKING too, and
so does `import_module("…")` with a literal name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "hedgerow"

WORDS = {"message", "topics", "errors", "rates", "duplicates"}
MACHINES = WORDS | {"mqtt", "fabric", "node"}
SHELL = MACHINES | {"journal", "net"}

# Part → what of hedgerow it may import besides itself. "" is the package's own __init__.
MAY_IMPORT: dict[str, set[str]] = {
    "message": WORDS,
    "topics": WORDS,
    "errors": WORDS,
    "rates": WORDS,
    "duplicates": WORDS,
    "extras": set(),
    "mqtt": WORDS,
    "fabric": WORDS | {"mqtt"},
    "node": WORDS | {"mqtt", "fabric"},
    "journal": WORDS | {"extras"},
    "net": MACHINES | {"journal"},
    "sim": MACHINES | {"journal"},
    "": WORDS | {"net"},
    "pipeline": WORDS | {"", "extras", "journal", "net.client", "net.programs", "fabric.hot"},
    "lab": SHELL | {"", "extras", "sim", "pipeline"},
    "demo": SHELL | {"", "extras", "pipeline", "lab"},
    "web": SHELL | {""},
    "bench": SHELL | {"", "sim", "pipeline"},
    "cli": SHELL | {"", "extras", "sim", "pipeline", "lab", "demo", "web", "bench"},
    "__main__": {"cli"},
}

# A machine is given its bytes, its time and its chances; it never fetches them.
SANS_IO = MACHINES
OUTSIDE_WORLD = {
    "asyncio", "concurrent", "fcntl", "importlib.metadata", "multiprocessing", "os", "pathlib", "random",
    "secrets", "select", "selectors", "signal", "socket", "socketserver", "sqlite3", "ssl", "subprocess",
    "tempfile", "threading", "time", "uuid", "uvloop",
}  # fmt: skip

# A simulated run is a function of its seed: chance it may make, from a seed, and nothing else of the world.
SEEDED = {"sim"}

# The parts of this one do not import each other either.
STRANGERS_WITHIN = "fabric"


def violations(package: Path) -> list[str]:
    """One line for each import under `package` that the tables forbid."""
    modules = {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
        for path in sorted(package.rglob("*.py"))
    }
    return [
        f"{path.relative_to(package.parent)}:{line} imports {imported}, which it may not: {reason}"
        for module, path in modules.items()
        for line, imported in _imports(path, module, modules)
        if (reason := _objection(module, imported))
    ]


def _objection(module: str, imported: str) -> str | None:
    part, _, rest = module.partition(".")
    if part not in MAY_IMPORT:
        return f"this test has no rule for {part}"
    if imported != "hedgerow" and not imported.startswith("hedgerow."):
        if part in SANS_IO and _is_within(imported, OUTSIDE_WORLD):
            return f"{part} is sans-IO"
        if part in SEEDED and _is_within(imported, OUTSIDE_WORLD - {"random"}):
            return f"a run of {part} is a function of its seed"
        return None
    target = imported.removeprefix("hedgerow").removeprefix(".")
    target_part, _, target_rest = target.partition(".")
    if target_part == part:
        if part == STRANGERS_WITHIN and rest.partition(".")[0] != target_rest.partition(".")[0]:
            return f"the parts of {part} do not import each other"
        return None
    if _is_within(target, MAY_IMPORT[part]):
        return None
    names = ", ".join(sorted(name or "hedgerow itself" for name in MAY_IMPORT[part]))
    return f"{part or 'hedgerow itself'} may import only {names}"


def _is_within(module: str, parts: set[str]) -> bool:
    """Is it one of these, or inside of one?"""
    return any(module == part or (part and module.startswith(f"{part}.")) for part in parts)


def _imports(path: Path, module: str, modules: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """(line, absolute name of the imported module), in the order of the file."""
    here = ["hedgerow", *filter(None, module.split("."))]
    package = here if path.name == "__init__.py" else here[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=name, names=names, level=level):
                above = package[: len(package) - level + 1] if level else []
                base = ".".join([*above, *([name] if name else [])])
                yield from ((node.lineno, _resolve(base, alias.name, modules)) for alias in names)
            case ast.Call(
                func=ast.Name(id=("import_module" | "__import__")) | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def _resolve(base: str, name: str, modules: dict[str, Path]) -> str:
    """`from base import name` imports the module base.name if there is one, else base."""
    inner = f"{base}.{name}"
    if base.partition(".")[0] == "hedgerow":
        inside = inner.removeprefix("hedgerow.")
        return inner if inside in modules or inside in MAY_IMPORT else base
    return inner if inner in OUTSIDE_WORLD else base


def test_imports_point_one_way() -> None:
    found = violations(PACKAGE)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "imported"),
    [
        ("message.py", "from hedgerow.mqtt import codec", "hedgerow.mqtt.codec"),
        ("topics.py", "import time", "time"),
        ("mqtt/session.py", "import asyncio", "asyncio"),
        ("mqtt/session.py", "def f() -> None:\n    from os import path", "os"),
        ("mqtt/session.py", "from concurrent.futures import Future", "concurrent.futures"),
        ("mqtt/session.py", "from importlib.metadata import version", "importlib.metadata"),
        ("mqtt/session.py", "from importlib import metadata", "importlib.metadata"),
        ("mqtt/broker/session.py", "from pathlib import Path", "pathlib"),
        ("mqtt/broker/session.py", "from ...net.client import urls", "hedgerow.net.client.urls"),
        ("mqtt/session.py", "if TYPE_CHECKING:\n    from hedgerow.net import store", "hedgerow.net"),
        ("mqtt/session.py", "from ..net import client", "hedgerow.net.client"),
        ("mqtt/session.py", "from .. import net", "hedgerow.net"),
        ("mqtt/__init__.py", "from ..fabric import bridges", "hedgerow.fabric"),
        ("mqtt/session.py", "from hedgerow import connect", "hedgerow"),
        (
            "mqtt/session.py",
            "import importlib\nimportlib.import_module('hedgerow.net.client.urls')",
            "hedgerow.net.client.urls",
        ),
        ("fabric/bridges.py", "from hedgerow.fabric.topology import Tree", "hedgerow.fabric.topology"),
        ("fabric/bridges.py", "from . import topology", "hedgerow.fabric.topology"),
        ("node.py", "import random", "random"),
        ("node.py", "import hedgerow.net.client.urls", "hedgerow.net.client.urls"),
        ("net/server.py", "from hedgerow import sim", "hedgerow.sim"),
        ("net/server.py", "from hedgerow.cli import up", "hedgerow.cli"),
        ("sim/network.py", "from hedgerow.net.client.urls import Address", "hedgerow.net.client.urls"),
        ("sim/network.py", "import time", "time"),
        ("pipeline/jobs.py", "from hedgerow.net.server import serve", "hedgerow.net.server"),
        ("pipeline/jobs.py", "import hedgerow.net", "hedgerow.net"),
        ("bench/loader.py", "from hedgerow.cli import main", "hedgerow.cli"),
        ("elsewhere/thing.py", "import json", "json"),
    ],
)
def test_an_import_against_the_direction_is_found(
    tmp_path: Path, path: str, source: str, imported: str
) -> None:
    package = _made_up_package(tmp_path, {path: source})
    (found,) = violations(package)
    assert found.startswith(
        f"hedgerow/{path}:{1 + source.count(chr(10))} imports {imported}, which it may not: "
    )


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("topics.py", "from hedgerow.errors import TopicError"),
        ("mqtt/session.py", "import json\nfrom . import codec\nfrom hedgerow import topics"),
        ("fabric/bridges.py", "from hedgerow.mqtt.codec import encode"),
        ("fabric/topology/__init__.py", "from hedgerow.fabric.topology.ring import Ring"),
        ("node.py", "from hedgerow.fabric import bridges, topology"),
        ("net/server.py", "import asyncio, ssl\nfrom hedgerow.node import Node"),
        ("sim/network.py", "import random\nfrom hedgerow.node import Node"),
        ("pipeline/jobs.py", "from hedgerow.net.client.urls import Address\nfrom hedgerow.net import client"),
        ("cli/bench.py", "from hedgerow.bench import loader\nimport hedgerow"),
        ("__init__.py", "def connect() -> None:\n    from hedgerow.net.client.urls import Address"),
        ("__main__.py", "from hedgerow.cli import main"),
    ],
)
def test_an_import_along_the_direction_is_allowed(tmp_path: Path, path: str, source: str) -> None:
    assert violations(_made_up_package(tmp_path, {path: source})) == []


def _made_up_package(parent: Path, files: dict[str, str]) -> Path:
    package = parent / "hedgerow"
    empty = ["mqtt/codec.py", "fabric/topology/__init__.py", "net/client/__init__.py", "net/client/urls.py"]
    for path, source in {**dict.fromkeys(empty, ""), **files}.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(source)
    return package
