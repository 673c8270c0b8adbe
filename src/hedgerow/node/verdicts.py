"""What comes of a log-in, beside yes and no."""

from __future__ import annotations

from typing import NamedTuple

MAX_GROUPS, MAX_GROUP = 200, 200  # of a user; characters


class Claims(NamedTuple):
    """What a log-in said of its user, beside that it is this one."""

    groups: frozenset[str]
    ends_at: float | None = None
    """In seconds since 1970."""


Verdict = bool | Claims
"""Claims are a yes, too."""


def looks_like_token(password: bytes) -> bool:
    """Three parts, of which the first is what base64 makes of `{"`."""
    return password.startswith(b"eyJ") and password.count(b".") == 2
