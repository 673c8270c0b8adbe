"""Multicast on real networks: interfaces, sockets and multicast DNS around a `Member`."""
