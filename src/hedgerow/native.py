"""Native code: the modules that a broker spends its time in, compiled from the very sources beside them.

`make native`, or a wheel that was built with HEDGEROW_BUILD_NATIVE=1, puts what mypyc made into the folder
`_native`, with a listing of it. Whoever imports `hedgerow` then gets those modules in the place of the plain
ones. Without the folder, or where a source has changed since, everything is plain Python: compiled modules
know how the others' objects lie in memory, so all of them are used or none. HEDGEROW_NATIVE=0 asks for plain
Python, and HEDGEROW_NATIVE=1 for native code or an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

PACKAGE = Path(__file__).parent
FOLDER = PACKAGE / "_native"
SUFFIX = EXTENSION_SUFFIXES[0]
"""It names the version of Python and the kind of machine: code for others is not looked at."""
LISTING = f"listing{SUFFIX}.json"
SWITCH = "HEDGEROW_NATIVE"


class NativeState(NamedTuple):
    """What of the compiled modules is used: all, or none for a reason."""

    modules: frozenset[str] = frozenset()
    reason: str = ""
    is_stale: bool = False

    def __str__(self) -> str:
        return "native code" if self.modules else "plain Python"


class Finder:
    """Finds compiled modules, and is asked before anybody looks for the plain ones."""

    def __init__(self, folder: Path, modules: frozenset[str]) -> None:
        self.folder = folder
        self.modules = modules

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.modules:
            return None
        file = str(self.folder / file_of(name))
        return ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)


def file_of(module: str) -> str:
    return module.replace(".", "/") + SUFFIX


def digest_of(sources: Sequence[str], package: Path = PACKAGE) -> str:
    """Of files of the package, and of their names."""
    from hashlib import blake2b

    digest = blake2b(digest_size=16)
    for source in sources:
        content = (package / source).read_bytes()
        digest.update(b"%s %d\n" % (source.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()


def look(folder: Path = FOLDER, package: Path = PACKAGE, switch: str = "") -> NativeState:
    """What may be used. Raises ImportError where `switch` asks for native code and there is none."""
    state = NativeState(reason=f"{SWITCH}=0") if switch == "0" else _look(folder, package)
    if switch == "1" and not state.modules:
        raise ImportError(f"{SWITCH}=1: {state.reason}; make native compiles it")
    return state


def _look(folder: Path, package: Path) -> NativeState:
    try:
        text = (folder / LISTING).read_bytes()
    except FileNotFoundError:
        return NativeState(reason="no native code was built")
    import json  # Most commands need neither this nor a digest.

    listing = json.loads(text)
    try:
        is_current = digest_of(listing["sources"], package) == listing["digest"]
    except FileNotFoundError:
        is_current = False
    if is_current:
        return NativeState(frozenset(listing["modules"]))
    return NativeState(reason="the native code is of other sources", is_stale=True)


STATE = look(switch=os.environ.get(SWITCH, ""))
if STATE.modules:
    sys.meta_path.insert(0, Finder(FOLDER, STATE.modules))
