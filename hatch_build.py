"""Native code in the wheel, where HEDGEROW_BUILD_NATIVE=1 asks for it; else the wheel is plain Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "HEDGEROW_BUILD_NATIVE"


class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
    def dependencies(self) -> list[str]:
        return ["mypy>=1.15", "setuptools"] if os.environ.get(SWITCH) == "1" else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get(SWITCH) != "1" or version != "standard":
            return
        sys.path.insert(0, str(Path(self.root) / "tools"))
        from build_native import build_for_wheel

        files = build_for_wheel(Path(self.root), self.app.display_warning)
        if files:
            build_data["force_include"] |= files
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
