"""Changes of interfaces, told by a socket that stands for the kernel's."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator

import pytest

from hedgerow.multicast.io import watch
from hedgerow.multicast.io.watch import InterfaceWatch
from tests.multicast.io.members import open_files
from tests.waiting import until

GATHER_S = 0.05


class Overrun(socket.socket):
    """The kernel had more to say than the buffer could hold."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        super().recv(size, flags)
        raise OSError(errno.ENOBUFS, "No buffer space available")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Whatever is sent by it is a change of some interface."""
    kernel, netlink = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    netlink.setblocking(False)
    monkeypatch.setattr(watch, "_open_netlink", lambda: netlink)
    monkeypatch.setattr(watch, "GATHER_S", GATHER_S)
    with kernel, netlink:
        yield kernel


async def test_changes_at_once_are_told_once_and_a_later_one_again(kernel: socket.socket) -> None:
    told: list[float] = []
    loop = asyncio.get_running_loop()
    watching = InterfaceWatch(lambda: told.append(loop.time()))
    began_at = loop.time()
    for _ in range(5):
        kernel.send(b"a link")
    await until(lambda: bool(told), "the first changes")
    assert told[0] - began_at >= 0.9 * GATHER_S
    kernel.send(b"an address")
    await until(lambda: len(told) > 1, "the later change")
    assert len(told) == 2
    watching.stop()


async def test_more_changes_than_could_be_read_are_a_change(
    kernel: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    netlink = Overrun(fileno=watch._open_netlink().detach())
    monkeypatch.setattr(watch, "_open_netlink", lambda: netlink)
    told: list[None] = []
    watching = InterfaceWatch(lambda: told.append(None))
    kernel.send(b"one of many")
    await until(lambda: bool(told), "the change")
    watching.stop()


async def test_nothing_is_told_after_the_end(kernel: socket.socket) -> None:
    told: list[None] = []
    watching = InterfaceWatch(lambda: told.append(None))
    kernel.send(b"a link")
    await until(lambda: watching._timer is not None, "the change to be noticed")
    watching.stop()
    watching.stop()  # again: nothing happens
    await asyncio.sleep(2 * GATHER_S)
    assert told == []


async def test_where_the_system_does_not_tell_it_is_asked_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbid() -> socket.socket:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(watch, "_open_netlink", forbid)
    monkeypatch.setattr(watch, "POLL_S", 0.01)
    told: list[None] = []
    watching = InterfaceWatch(lambda: told.append(None))
    await until(lambda: len(told) >= 3, "to be asked three times")
    watching.stop()
    before = len(told)
    await asyncio.sleep(0.05)
    assert len(told) == before


async def test_the_kernels_own_socket_hears_of_links_addresses_and_routes() -> None:
    before = open_files()
    watching = InterfaceWatch(lambda: None)
    assert watching._netlink is not None
    # <linux/rtnetlink.h>: RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE
    assert watching._netlink.getsockname()[1] == 0x1 | 0x10 | 0x100 | 0x400
    watching.stop()
    assert open_files() == before
