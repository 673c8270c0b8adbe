"""Which Hedgerow this is."""

from __future__ import annotations

VERSION = "0.1.0"
"""As pyproject.toml has it. To ask for the installed package's was an eighth of a node's start."""
