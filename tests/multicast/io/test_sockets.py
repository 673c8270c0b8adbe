"""Sockets of groups on the loopback interface: what each hears, how far it sends, and what it leaves."""

from __future__ import annotations

import select
import socket

import pytest

from hedgerow.multicast.io import sockets
from hedgerow.multicast.io.interfaces import Interface
from hedgerow_workshop.programs import free_udp_port
from tests.multicast.io.members import loopback, open_files, stranger_on_loopback
from tests.waiting import PATIENCE_S

GROUP, OTHER_GROUP = "239.255.9.1", "239.255.9.2"
NOWHERE = Interface("gone", 999_999, "127.0.0.1")  # an index that no interface has


def next_of(receiver: socket.socket) -> bytes:
    assert select.select([receiver], [], [], PATIENCE_S)[0], "waited in vain for a datagram"
    return receiver.recv(100)


def test_a_receiver_hears_its_group_alone() -> None:
    """Though another socket of this machine has joined the other group at the same port."""
    port = free_udp_port()
    interfaces = loopback().interfaces
    (one,) = sockets.open_receivers(4, interfaces, GROUP, port)
    (other,) = sockets.open_receivers(4, interfaces, OTHER_GROUP, port)
    with one, other, stranger_on_loopback() as stranger:
        stranger.sendto(b"to the other", (OTHER_GROUP, port))
        stranger.sendto(b"to this machine", ("127.0.0.1", port))
        stranger.sendto(b"to the one", (GROUP, port))
        assert next_of(one) == b"to the one"
        assert next_of(other) == b"to the other"
        with pytest.raises(BlockingIOError):
            other.recv(100)


def test_several_members_of_one_machine_hear_the_same_group() -> None:
    port = free_udp_port()
    (one,) = sockets.open_receivers(4, loopback().interfaces, GROUP, port)
    (another,) = sockets.open_receivers(4, loopback().interfaces, GROUP, port)
    (interface,) = loopback().interfaces
    with one, another, sockets.open_sender(4, GROUP, port, interface, "link") as sender:
        sender.send(b"for both")
        assert next_of(one) == next_of(another) == b"for both"


def test_an_interface_that_refuses_is_left_out() -> None:
    port = free_udp_port()
    (receiver,) = sockets.open_receivers(4, [NOWHERE, *loopback().interfaces], GROUP, port)
    with receiver, stranger_on_loopback() as stranger:
        stranger.sendto(b"x", (GROUP, port))
        assert next_of(receiver) == b"x"


def test_when_all_interfaces_refuse_that_is_an_error_and_nothing_stays_open() -> None:
    before = open_files()
    with pytest.raises(OSError, match="No such device"):
        sockets.open_receivers(4, [NOWHERE], GROUP, free_udp_port())
    for ip, group in ((4, "not a group"), (6, "ff12::1")):
        with pytest.raises(OSError):
            sockets.open_sender(ip, group, free_udp_port(), NOWHERE, "link")
    assert open_files() == before


@pytest.mark.parametrize(("scope", "hops"), [("interface", 0), ("link", 1), ("site", 15)])
def test_a_datagram_goes_as_far_as_its_scope(scope: str, hops: int) -> None:
    (interface,) = loopback().interfaces
    with sockets.open_sender(4, GROUP, free_udp_port(), interface, scope) as sender:
        assert sender.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) == hops
    with sockets.open_own(6, 0, scope) as own:
        assert own.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS) == hops


def test_the_own_port_is_the_one_wanted_or_any() -> None:
    port = free_udp_port()
    with sockets.open_own(4, port, "link") as first, sockets.open_own(4, port, "link") as second:
        assert first.getsockname()[1] == port
        assert second.getsockname()[1] not in (0, port)


def test_with_ipv6_a_peer_is_reached_by_ipv4_too() -> None:
    with sockets.open_own(6, 0, "link") as own, socket.socket(type=socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        own.sendto(b"x", ("::ffff:127.0.0.1", peer.getsockname()[1]))
        peer.settimeout(PATIENCE_S)
        assert peer.recv(100) == b"x"
