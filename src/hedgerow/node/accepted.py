"""The sockets of accepted connections, apart from `listener.py`: that is compiled, and these cannot be."""

from __future__ import annotations

import socket


class Accepted(socket.socket):
    """Its family and type are plain numbers. `accept` and uvloop ask for them five times for each socket, and
    a tenth of what a connection costs went into the members of enumerations that `socket` makes of them.

    It has to be a `socket.socket`: uvloop closes the descriptor of any other object twice.
    """

    __slots__ = ()
    family = socket.SocketType.family  # type: ignore[assignment]
    type = socket.SocketType.type  # type: ignore[assignment]
