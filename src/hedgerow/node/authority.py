"""`HOST:PORT`, as URLs, configuration and log lines write it (RFC 3986 §3.2)."""

from __future__ import annotations

from urllib.parse import urlsplit


def authority(host: str, port: int | None = None) -> str:
    """An IPv6 address goes in brackets; without a port it is the host alone."""
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if port is None else f"{bracketed}:{port}"


def host_and_port(header: str) -> tuple[str, int | None]:
    """Of a Host header; an empty host for one that makes no sense."""
    try:
        parts = urlsplit(f"//{header}")
        if parts.netloc != header or "@" in header:
            return "", None
        return parts.hostname or "", parts.port
    except ValueError:
        return "", None
