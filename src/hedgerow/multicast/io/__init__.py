"""Multicast on real networks: interfaces, sockets and multicast DNS around a `Member`."""

from __future__ import annotations

DEFAULT_PORT = 18_514
