"""The key that the nodes of one fabric share: read from its file, which is made at first need.

Without `access.key_file` each user has one, so that all nodes of a user on a machine know each other.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from hedgerow.errors import ConfigError, reason_of
from hedgerow.node.files import read_regular

KEY_BYTES = 32
MIN_KEY_BYTES = 16
MAX_KEY_BYTES = 4_096
MAX_KEY_FILE_BYTES = 2 * MAX_KEY_BYTES  # with the white space around it

logger = logging.getLogger("hedgerow")


def default_path() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "hedgerow" / "key"


def find_key(path: Path | None) -> bytes:
    """What the file has; None: what the user's own has. Raises ConfigError for a file that was named."""
    if path is not None:
        return read_key(path)
    try:
        own = default_path()
        if not own.exists():
            _make(own)
        return read_key(own)
    except (OSError, RuntimeError, ConfigError) as error:  # RuntimeError: nobody knows the home directory.
        logger.warning(
            "no key of this user (%s): no other node will know this one; --fabric-key names one", error
        )
        return os.urandom(KEY_BYTES)


def read_key(path: Path) -> bytes:
    try:
        key = read_regular(path, MAX_KEY_FILE_BYTES).strip()
    except OSError as error:
        raise ConfigError(f"{path}: {reason_of(error)}") from None
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ConfigError(
            f"{path}: a key has {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, not {len(key)}; "
            f"openssl rand -hex 32 > {path} makes one"
        )
    return key


def _make(path: Path) -> None:
    """Whole or not at all, and once: of nodes that start together all have the same."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = path.with_name(f".key-{os.urandom(8).hex()}")
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(os.urandom(KEY_BYTES).hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(name, path)  # Unlike a rename, it fails where there is one by now.
    except FileExistsError:
        pass
    finally:
        name.unlink()
