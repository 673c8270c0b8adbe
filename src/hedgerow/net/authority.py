"""`HOST:PORT`, as URLs, configuration and log lines write it (RFC 3986 §3.2)."""

from __future__ import annotations


def authority(host: str, port: int | None = None) -> str:
    """An IPv6 address goes in brackets; without a port it is the host alone."""
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if port is None else f"{bracketed}:{port}"
