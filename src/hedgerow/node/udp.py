"""What every UDP socket here has in common: how it is opened, and how it is read.

A turn of the loop reads a bounded number of datagrams from a socket. An error among them is the network's
word on a datagram that was sent before; the socket is as good as ever, and what waits behind it is read.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import TypeVar

DATAGRAMS_PER_TURN = 64  # a flood at one socket must not starve the others
RECEIVE_BUFFER_BYTES = 1 << 20  # a burst of all senders at once; the system may grant less

Received = TypeVar("Received")


def open_socket(family: int, receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES) -> socket.socket:
    """One that does not block. Raises OSError."""
    opened = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    return opened


def read_turn(
    receive: Callable[[int], Received], most_bytes: int, on_error: Callable[[OSError], None] | None = None
) -> Iterator[Received]:
    """What a socket's `recv` or `recvfrom` has for this turn."""
    for _ in range(DATAGRAMS_PER_TURN):
        try:
            received = receive(most_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            if on_error is not None:
                on_error(error)
            continue
        yield received
