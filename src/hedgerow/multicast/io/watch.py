"""Tells when the interfaces of this machine, or their addresses, have changed."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

logger = logging.getLogger(__name__)

# <linux/rtnetlink.h>
_RTMGRP_LINK, _RTMGRP_IPV4_IFADDR, _RTMGRP_IPV6_IFADDR, _RTMGRP_IPV6_ROUTE = 0x1, 0x10, 0x100, 0x400

# A link that comes up brings several changes; they are looked at together.
GATHER_S = 0.2
POLL_S = 5.0  # where the system does not tell


def open_netlink() -> socket.socket:
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK
    netlink = socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)
    try:
        groups = _RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR | _RTMGRP_IPV6_ROUTE
        netlink.bind((0, groups))
    except BaseException:
        netlink.close()
        raise
    return netlink


class InterfaceWatch:
    def __init__(
        self,
        on_change: Callable[[], None],
        open_netlink: Callable[[], socket.socket] = open_netlink,
        gather_s: float = GATHER_S,
        poll_s: float = POLL_S,
    ) -> None:
        self._on_change = on_change
        self._gather_s = gather_s
        self._poll_s = poll_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._netlink: socket.socket | None = None
        try:
            self._netlink = open_netlink()
        except OSError:  # a sandbox may forbid it
            self._timer = self._loop.call_later(self._poll_s, self._poll)
        else:
            self._loop.add_reader(self._netlink, self._read)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._netlink is not None:
            self._loop.remove_reader(self._netlink)
            self._netlink.close()
            self._netlink = None

    def _read(self) -> None:
        assert self._netlink is not None
        with suppress(OSError):  # Nothing more, or more than its buffer held: both mean "look".
            while self._netlink.recv(65_536):
                pass
        if self._timer is None:
            self._timer = self._loop.call_later(self._gather_s, self._tell)

    def _tell(self) -> None:
        self._timer = None
        self._on_change()

    def _poll(self) -> None:
        self._timer = self._loop.call_later(self._poll_s, self._poll)
        self._on_change()
