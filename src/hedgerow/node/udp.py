"""What every UDP socket here has in common: how it is opened, and how it is read.

A turn of the loop reads a bounded number of datagrams from a socket. An error among them is the network's
word on a datagram that was sent before; the socket is as good as ever, and what waits behind it is read.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from hedgerow.errors import counted

DATAGRAMS_PER_TURN = 64  # a flood at one socket must not starve the others
RECEIVE_BUFFER_BYTES = 4 << 20  # a burst of all senders at once; the system may grant less
SETTING = "net.core.rmem_max"  # what the system grants to whoever has no special right

# <asm-generic/socket.h>, <linux/sock_diag.h>: not in Python's `socket`.
SO_RCVBUFFORCE, _SO_MEMINFO, _SK_MEMINFO_DROPS = 33, 55, 8

Received = TypeVar("Received")


@dataclass(slots=True)
class DatagramsDropped:
    """The system had no room for datagrams that arrived."""

    level: ClassVar[int] = logging.WARNING
    lines_a_minute: ClassVar[int] = 1
    address: str
    """Where they arrived."""
    reason: str

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


class DropWatch:
    """Says that datagrams were dropped, and what to do about it."""

    def __init__(self) -> None:
        self._told = 0

    def look(self, address: str, dropped: int, granted: int) -> DatagramsDropped | None:
        """`dropped`: in all, since the sockets were opened; `granted`: bytes, the least of one of them."""
        new, self._told = dropped - self._told, max(dropped, self._told)
        if new <= 0:
            return None
        advice = "this machine is too slow for what arrives"
        if granted < RECEIVE_BUFFER_BYTES:
            advice = (
                f"its receive buffer has {granted} of {RECEIVE_BUFFER_BYTES} bytes; "
                f"sysctl -w {SETTING}={RECEIVE_BUFFER_BYTES}"
            )
        datagrams = counted(new, "datagram")
        reason = f"the system dropped {datagrams} that came faster than this program read: {advice}"
        return DatagramsDropped(address, reason)


def open_socket(family: int, receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES) -> socket.socket:
    """One that does not block. Raises OSError."""
    opened = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    with suppress(OSError):  # needs a right that a plain user has not
        opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, receive_buffer_bytes)
    return opened


def granted_bytes(opened: socket.socket) -> int:
    """How much of the receive buffer that was asked for the system gave."""
    # Linux sets twice what it was asked for, and counts its own overhead against it (socket(7)).
    return opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def count_dropped(opened: socket.socket) -> int:
    """Datagrams that the system dropped because the socket's buffer was full: what SO_RXQ_OVFL tells with
    the next datagram, without waiting for one."""
    try:
        information = opened.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 64)
        return int(struct.unpack_from("@I", information, 4 * _SK_MEMINFO_DROPS)[0])
    except (OSError, struct.error):
        return 0


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
