"""The end of a client of Eclipse Paho, which leaves its sockets to whoever collects it."""

from __future__ import annotations

from paho.mqtt.client import Client


def close_sockets(client: Client) -> None:
    """At once, and without DISCONNECT: when it is collected is too late for pytest."""
    client._reset_sockets()
