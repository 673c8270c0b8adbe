"""`HOST:PORT`, as URLs, configuration and log lines write it (RFC 3986 §3.2)."""

from __future__ import annotations

import re
from ipaddress import IPv6Address

MAX_PORT = 65_535

# All of it, or it makes no sense: `urlsplit` finds ::1 in "[::1].evil.example".
_AUTHORITY = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:/?#@\\\s]+))(?::([0-9]{0,5}))?")


def authority(host: str, port: int | None = None) -> str:
    """An IPv6 address goes in brackets; without a port it is the host alone."""
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if port is None else f"{bracketed}:{port}"


def host_and_port(header: str) -> tuple[str, int | None]:
    """Of a Host header, in lower case; an empty host for one that makes no sense."""
    found = _AUTHORITY.fullmatch(header)
    if found is None:
        return "", None
    bracketed, name, digits = found.groups()
    port = int(digits) if digits else None
    if (port or 0) > MAX_PORT or (bracketed and not _is_ipv6(bracketed)):
        return "", None
    return (bracketed or name).lower(), port


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True
