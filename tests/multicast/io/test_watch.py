"""Changes of interfaces, told by a socket that stands for the kernel's."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator

import pytest

from hedgerow.multicast.io.watch import InterfaceWatch, open_netlink
from tests.multicast.io.members import open_files
from tests.waiting import until

GATHER_S = 0.05


class Overrun(socket.socket):
    """The kernel had more to say than the buffer could hold."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        super().recv(size, flags)
        raise OSError(errno.ENOBUFS, "No buffer space available")


class Kernel:
    """Whatever is sent by it is a change of some interface."""

    def __init__(self) -> None:
        self.own, self.netlink = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.netlink.setblocking(False)

    def watch(self, on_change: Callable[[], None]) -> InterfaceWatch:
        return InterfaceWatch(on_change, lambda: self.netlink, GATHER_S)

    def send(self, change: bytes) -> None:
        self.own.send(change)

    @property
    def was_heard(self) -> bool:
        """Whether everything sent has been read."""
        try:
            self.netlink.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        return False


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    with kernel.own, kernel.netlink:
        yield kernel


async def test_changes_at_once_are_told_once_and_a_later_one_again(kernel: Kernel) -> None:
    told: list[float] = []
    loop = asyncio.get_running_loop()
    watching = kernel.watch(lambda: told.append(loop.time()))
    began_at = loop.time()
    for _ in range(5):
        kernel.send(b"a link")
    await until(lambda: bool(told), "the first changes")
    assert told[0] - began_at >= 0.9 * GATHER_S
    kernel.send(b"an address")
    await until(lambda: len(told) > 1, "the later change")
    assert len(told) == 2
    watching.stop()


async def test_more_changes_than_could_be_read_are_a_change(kernel: Kernel) -> None:
    kernel.netlink = Overrun(fileno=kernel.netlink.detach())
    told: list[None] = []
    watching = kernel.watch(lambda: told.append(None))
    kernel.send(b"one of many")
    await until(lambda: bool(told), "the change")
    watching.stop()


async def test_nothing_is_told_after_the_end(kernel: Kernel) -> None:
    told: list[None] = []
    watching = kernel.watch(lambda: told.append(None))
    kernel.send(b"a link")
    await until(lambda: kernel.was_heard, "the change to be noticed")
    watching.stop()
    watching.stop()  # again: nothing happens
    await asyncio.sleep(2 * GATHER_S)
    assert told == []


async def test_where_the_system_does_not_tell_it_is_asked_again_and_again() -> None:
    def forbid() -> socket.socket:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    told: list[None] = []
    watching = InterfaceWatch(lambda: told.append(None), forbid, poll_s=0.01)
    await until(lambda: len(told) >= 3, "to be asked three times")
    watching.stop()
    before = len(told)
    await asyncio.sleep(0.05)
    assert len(told) == before


async def test_the_kernels_own_socket_hears_of_links_addresses_and_routes() -> None:
    before = open_files()
    with open_netlink() as netlink:
        # <linux/rtnetlink.h>: RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE
        assert netlink.getsockname()[1] == 0x1 | 0x10 | 0x100 | 0x400
    InterfaceWatch(lambda: None).stop()
    assert open_files() == before
