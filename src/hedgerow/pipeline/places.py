"""Where tables and journals are: a directory, or a `file:` URL of one.

A path is asked for the scheme of a URL before anything else: Python takes `s3a://bucket/lake` for a folder
called `s3a:`, and makes it.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hedgerow.errors import ConfigError

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
            f"{text}: journals and tables are in a file system, which {url.scheme}: is not. Name a directory "
            "that this machine, and all workers of a cluster, reach; a store can be mounted as one"
        )
    if url.netloc not in ("", "localhost") or url.query or url.fragment:
        raise ConfigError(f"{text}: write file:///DIRECTORY, or the directory alone")
    return Path(unquote(url.path))
