"""Imports point one way, as docs/architecture.md draws it.

Every import statement counts, wherever it stands: inside a function or under TYPE_CHECKING too, and
so does `import_module("…")` with a literal name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "hedgerow"
WORKSHOP = ROOT / "workshop" / "src" / "hedgerow_workshop"

VOCABULARY = {
    "message",
    "topics",
    "errors",
    "rates",
    "duplicates",
    "origins",
    "digests",
    "packed",
    "compiling",
    "facts",
}
CORE = VOCABULARY | {"mqtt", "broker"}
NODE = CORE | {"node"}
DISK = {"log"}  # Files of frames, for the node's store and for the journal
ROOMS = {
    "multicast",
    "sensors",
    "bridges",
    "agent",
    "federation",
    "mobility",
    "journal",
    "home_assistant",
    "quotas",
}
CONFIGS = {f"{room}.config" for room in {*ROOMS, "web"}}

# Part → what of hedgerow it may import besides itself. "" is the package's own __init__.
MAY_IMPORT: dict[str, set[str]] = {
    "message": VOCABULARY,
    "topics": VOCABULARY,
    "errors": VOCABULARY,
    "rates": VOCABULARY,
    "duplicates": VOCABULARY,
    "origins": set(),
    "packed": set(),
    "facts": set(),
    "compiling": set(),
    "digests": set(),
    "native": set(),
    "extras": set(),
    "mqtt": VOCABULARY,
    "broker": VOCABULARY | {"mqtt"},
    "log": VOCABULARY,
    "hot": CORE,  # It observes the publications of a broker.
    "node": CORE
    | DISK
    | {
        "client.urls",
        "extras",
    },  # It knows no room. How a URL is read is the same for a bus and for a broker.
    "client": CORE | {"node", "multicast", "sensors"},
    "multicast": NODE,
    "sensors": NODE,
    "home_assistant": NODE,
    "quotas": NODE,
    "bridges": NODE,
    "agent": NODE | {"bridges", "client", "parts"},  # `bridge_process` hosts whole nodes
    "federation": NODE | {"bridges"},  # A sidecar reaches the broker that it stands beside by a bridge.
    "mobility": NODE | {"hot"},
    "journal": NODE | DISK | {"extras", "client"},
    "serving": NODE | {"client", "kinds", "parts"},
    "": VOCABULARY | {"client", "native", "serving"},
    "pipeline": VOCABULARY | {"", "extras", "journal", "client", "hot"},
    "web": NODE | {"", "bridges"},
    # The table names what it is made of in words, `MODULE:CLASS`, and imports only what is configured of it.
    "parts": NODE | CONFIGS,
    "kinds": NODE | CONFIGS | {"parts"},
    "cli": NODE
    | ROOMS
    | {"", "extras", "native", "client", "hot", "kinds", "parts", "pipeline", "serving", "web"},
    "__main__": {"cli"},
}

# A machine is given its bytes, its time and its chances; it never fetches them. In these parts every
# module is one but for the shell: modules called `part`, `config`, `metrics` and `status`, which are the room
# as its node sees it, and what is in a folder `io`.
MACHINES = CORE | ROOMS | {"hot"}
SHELLS = {"part", "config", "metrics", "status"}
OUTSIDE_WORLD = {
    "asyncio", "concurrent", "fcntl", "importlib.metadata", "multiprocessing", "os", "pathlib", "random",
    "secrets", "select", "selectors", "signal", "socket", "socketserver", "sqlite3", "ssl", "subprocess",
    "tempfile", "threading", "time", "uuid", "uvloop",
}  # fmt: skip

# A simulated run is a function of its seed: chance it may make, from a seed, and nothing else of the world.
SEEDED = "sim"


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


def _is_machine(module: str) -> bool:
    part, *rest = module.split(".")
    return part in MACHINES and "io" not in rest and (not rest or rest[-1] not in SHELLS)


def _objection(module: str, imported: str) -> str | None:
    part = module.partition(".")[0]
    if part not in MAY_IMPORT:
        return f"this test has no rule for {part}"
    if imported != "hedgerow" and not imported.startswith("hedgerow."):
        if imported.partition(".")[0] == WORKSHOP.name:
            return "the product does not know the workshop"
        if _is_machine(module) and _is_within(imported, OUTSIDE_WORLD):
            return "a machine does no I/O"
        return None
    target = imported.removeprefix("hedgerow").removeprefix(".")
    target_part = target.partition(".")[0]
    if _is_machine(module) and target_part == "node":
        return "a machine knows no node"
    if target_part == part:
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


MOST_IN_A_CYCLE = 3
FEATURES = re.compile(
    r"\b\w*(mobil|federat|neighbour|bridge|journal|sidecar|delegat|renewal)\w*", re.IGNORECASE
)


def cycles(package: Path) -> list[list[str]]:
    """Modules that import each other, TYPE_CHECKING included, by groups of more than one. An import inside a
    function is for when it runs."""
    modules = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in package.rglob("*.py")
    }
    graph = {name: _imports_at_top(path, name, modules) for name, path in modules.items()}
    reach: dict[str, set[str]] = {}
    for name, imported in graph.items():
        reached: set[str] = set()
        ahead = list(imported)
        while ahead:
            each = ahead.pop()
            if each not in reached:
                reached.add(each)
                ahead += graph[each]
        reach[name] = reached
    groups = {frozenset(other for other in reach[name] if name in reach[other]) for name in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _imports_at_top(path: Path, name: str, modules: dict[str, Path]) -> set[str]:
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {each if each in modules else node.module for each in inner}
    return {each for each in found if each in modules and each != name}


def test_few_modules_import_each_other() -> None:
    assert [group for group in cycles(PACKAGE) if len(group) > MOST_IN_A_CYCLE] == []


def test_a_cycle_is_found(tmp_path: Path) -> None:
    sources = {
        "a.py": "from hedgerow.b import x",
        "b.py": "if TYPE_CHECKING:\n    from hedgerow.c import y",
        "c.py": "import hedgerow.a",
        "d.py": "def f() -> None:\n    import hedgerow.e",
        "e.py": "import hedgerow.d",
    }
    package = tmp_path / "hedgerow"
    package.mkdir()
    for name, source in sources.items():
        (package / name).write_text(source)
    assert cycles(package) == [["hedgerow.a", "hedgerow.b", "hedgerow.c"]]


def test_the_core_names_no_feature() -> None:
    named = [
        f"{path.name}:{number} {line.strip()}"
        for path in sorted((PACKAGE / "broker").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if FEATURES.search(line)
    ]
    assert named == []


def test_the_simulator_is_a_function_of_its_seed() -> None:
    forbidden = OUTSIDE_WORLD - {"random"}
    found = [
        f"{path.name}:{line} imports {imported}"
        for path in sorted((WORKSHOP / SEEDED).rglob("*.py"))
        for line, imported in _imports(path, path.stem, {})
        if _is_within(imported, forbidden)
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "imported"),
    [
        ("message.py", "from hedgerow.mqtt import codec", "hedgerow.mqtt.codec"),
        ("topics.py", "import time", "time"),
        ("broker/session.py", "import asyncio", "asyncio"),
        ("broker/session.py", "def f() -> None:\n    from os import path", "os"),
        ("broker/session.py", "from concurrent.futures import Future", "concurrent.futures"),
        ("broker/session.py", "from importlib.metadata import version", "importlib.metadata"),
        ("broker/session.py", "from importlib import metadata", "importlib.metadata"),
        ("broker/session.py", "from ..client import urls", "hedgerow.client.urls"),
        ("mqtt/session.py", "if TYPE_CHECKING:\n    from hedgerow.node import store", "hedgerow.node"),
        ("mqtt/__init__.py", "from ..broker import broker", "hedgerow.broker"),
        ("mqtt/session.py", "from .. import node", "hedgerow.node"),
        ("mqtt/session.py", "from hedgerow import connect", "hedgerow"),
        (
            "mqtt/session.py",
            "import importlib\nimportlib.import_module('hedgerow.client.urls')",
            "hedgerow.client.urls",
        ),
        ("bridges/bridge.py", "from hedgerow.agent import Tree", "hedgerow.agent"),
        ("bridges/bridge.py", "from hedgerow.node.clock import SteadyClock", "hedgerow.node.clock"),
        ("bridges/bridge.py", "import random", "random"),
        ("bridges/inner/bridge.py", "import random", "random"),
        ("multicast/member.py", "import hedgerow.sensors.packet", "hedgerow.sensors.packet"),
        ("node/server.py", "from hedgerow.cli import up", "hedgerow.cli"),
        (
            "node/config.py",
            "if TYPE_CHECKING:\n    from hedgerow.federation.config import FederationConfig",
            "hedgerow.federation.config",
        ),
        ("parts.py", "from hedgerow.federation.part import FederationPart", "hedgerow.federation.part"),
        ("node/server.py", "from hedgerow_workshop.sim import network", "hedgerow_workshop.sim"),
        ("pipeline/jobs.py", "from hedgerow.node.server import serve", "hedgerow.node.server"),
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
        ("bridges/bridge.py", "from hedgerow.mqtt.codec import encode"),
        ("bridges/part.py", "import asyncio\nfrom hedgerow.node.clock import SteadyClock"),
        ("bridges/config.py", "from pathlib import Path"),
        ("bridges/io/files.py", "from pathlib import Path"),
        ("agent/shapes.py", "from hedgerow.agent.ring import Ring"),
        ("node/server.py", "import asyncio, ssl\nfrom hedgerow.broker import broker"),
        ("parts.py", "from hedgerow.federation.config import CHAPTER"),
        ("pipeline/jobs.py", "from hedgerow.client.urls import Address\nfrom hedgerow import client"),
        ("__init__.py", "def connect() -> None:\n    from hedgerow.client.urls import Address"),
        ("__main__.py", "from hedgerow.cli import main"),
    ],
)
def test_an_import_along_the_direction_is_allowed(tmp_path: Path, path: str, source: str) -> None:
    assert violations(_made_up_package(tmp_path, {path: source})) == []


def _made_up_package(parent: Path, files: dict[str, str]) -> Path:
    package = parent / "hedgerow"
    empty = ["mqtt/codec.py", "agent/__init__.py", "client/__init__.py", "client/urls.py"]
    for path, source in {**dict.fromkeys(empty, ""), **files}.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(source)
    return package
