"""Where tables and journals are: a directory, a `file:` URL of one, or for tables a URL of an object store.

A path is asked for the scheme of a URL before anything else: Python takes `s3a://bucket/lake` for a folder
called `s3a:`, and makes it.

Only tables are in a store. What goes with them (checkpoints, steps, locks, progress) is small, changes often
and is renamed, which stores are bad at: it is in a directory, beside tables that are in one (`state_of`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from hedgerow.errors import ConfigError

STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
"""Schemes of URLs of tables. Keys and addresses come from the environment, as `deltalake` reads it."""
STATE_VARIABLE = "HEDGEROW_STATE"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def directory_of(place: str | Path) -> Path:
    """Absolute: executors are not where the driver is. ConfigError: it is elsewhere than in a file system."""
    text = str(place)
    # A path has lost one of the two slashes already.
    found = _URL.match(text)
    if found is None:
        return Path(text).absolute()
    url = urlsplit(text)
    if url.scheme != "file":
        raise ConfigError(
            f"{text}: this is in a file system, which {url.scheme}: is not. Name a directory that this "
            "machine, and all workers of a cluster, reach"
        )
    if url.netloc not in ("", "localhost") or url.query or url.fragment:
        raise ConfigError(f"{text}: write file:///DIRECTORY, or the directory alone")
    return Path(unquote(url.path))


def location_of(place: str | Path) -> str:
    """Of tables: an absolute path, or a URL of a store without a slash at its end. ConfigError: neither."""
    text = str(place)
    found = _URL.match(text)
    if found is None or found[1] == "file":
        return str(directory_of(text))
    url = urlsplit(text)
    if url.scheme not in STORES:
        schemes = ", ".join(f"{scheme}://" for scheme in STORES)
        raise ConfigError(f"{text}: tables are in a directory, or below a URL of {schemes}")
    if not url.netloc or url.query or url.fragment:
        raise ConfigError(f"{text}: write {url.scheme}://BUCKET/PATH")
    return text.rstrip("/")


def is_in_store(place: str | Path) -> bool:
    return _URL.match(str(place)) is not None and not str(place).startswith("file:")


def state_of(place: str | Path) -> Path:
    """The directory of what goes with the tables: their own, or for those in a store one on this machine."""
    location = location_of(place)
    if not is_in_store(location):
        return Path(location)
    chosen = os.environ.get(STATE_VARIABLE)
    if chosen:
        return directory_of(chosen)
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(home) / "hedgerow" / quote(location, safe="")
