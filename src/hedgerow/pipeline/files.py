"""Small files that others read while they are written."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_LOG_BYTES = 16 * 1024 * 1024


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


def rotate(path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """What is in a log that others append to goes into `path`.1, once it is large."""
    try:
        if path.stat().st_size <= max_bytes:
            return
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        # Not renamed: Java and its workers hold it open, and append to wherever its end is.
        os.truncate(path, 0)
    except OSError as error:
        logger.warning("%s is not shortened: %s", path, error)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
