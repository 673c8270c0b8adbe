"""Which Hedgerow this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    try:
        return version("hedgerow")
    except PackageNotFoundError:
        return "(not installed: run from its source)"
