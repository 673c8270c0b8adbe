"""Small files that others read while they are written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_text(path: Path, text: str, mode: int = 0o644, *, is_durable: bool = False) -> None:
    """The file has this text, or an older one whole; several processes may write it at the same time.
    `is_durable`: it has the text after a power cut too.

    Its directory is made where there is none. OSError: nothing has changed, and nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        fresh.chmod(mode)
        fresh.replace(path)
        if is_durable:
            sync_directory(path.parent)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
