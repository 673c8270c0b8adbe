"""What to type for a part of Hedgerow that is not installed, such that it works in this very installation.

pip records where a package came from. A folder of the source is named again, whether it is used in place or
was copied from; a package of an index is asked for by its name.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

SOURCE = Path(__file__).resolve().parents[2]  # where this file is that of a clone


def install_command(
    extra: str, find: Callable[[str], Distribution] = distribution, source: Path = SOURCE
) -> str:
    """By this interpreter: the `pip` of a shell may be that of another."""
    folder, options = _source(find, source)
    package = f"{folder}[{extra}]" if folder is not None else f"hedgerow[{extra}]"
    return shlex.join([sys.executable, "-m", "pip", "install", *options, package])


def _source(find: Callable[[str], Distribution], source: Path) -> tuple[Path | None, list[str]]:
    """The folder of the source, if there is one, and what pip was told with it."""
    try:
        told = json.loads(find("hedgerow").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # It is run from its source.
        return (source, ["-e"]) if (source / "pyproject.toml").is_file() else (None, [])
    if "dir_info" not in told:
        return None, []
    folder = Path(unquote(urlsplit(told["url"]).path))
    is_editable = told["dir_info"].get("editable", False)
    return (folder if folder.is_dir() else None), ["-e"] if is_editable else []
