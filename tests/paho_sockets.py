"""The end of a client of Eclipse Paho, which leaves its sockets to whoever collects it."""

from __future__ import annotations

from contextlib import suppress

from paho.mqtt.client import Client


def close_sockets(client: Client) -> None:
    """At once, and without DISCONNECT: when it is collected is too late for pytest."""
    client._reset_sockets()


def stop_loop(client: Client) -> None:
    """End its thread. `loop_stop` fails if the thread ends by itself between its two looks at it."""
    with suppress(AttributeError):
        client.loop_stop()
