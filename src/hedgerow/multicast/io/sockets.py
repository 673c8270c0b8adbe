"""The sockets of a member: one to hear each group, one to send to each, and one of its own.

A socket that is bound to a group's address, and told not to hear groups that others joined, gets that
group's datagrams and no other: no destination address has to be asked for with each datagram, and the
limits on groups per socket do not matter.
"""

from __future__ import annotations

import errno
import resource
import socket
import struct
from collections.abc import Sequence

from hedgerow.multicast.io.interfaces import Interface, set_ipv4_interface, set_ipv6_interface
from hedgerow.node import udp

# <linux/in.h>, <linux/in6.h>: not in Python's `socket`.
IP_MULTICAST_ALL, _IPV6_MULTICAST_ALL = 49, 29

SEND_BUFFER_BYTES = 1024 * 1024

# How far a datagram travels: not beyond the link, unless the scope says that routers may pass it on.
HOPS = {"interface": 0, "link": 1, "site": 15}


def open_receivers(ip: int, interfaces: Sequence[Interface], group: str, port: int) -> list[socket.socket]:
    """Sockets that hear a group on these interfaces.

    A group of link-local scope is another one on each link, and takes a socket per interface. An
    interface that refuses is left out; raises OSError when all do.
    """
    per_interface = ip == 6 and int(group[3], 16) <= 2
    opened: list[socket.socket] = []
    failure: OSError | None = None
    for together in [[each] for each in interfaces] if per_interface else [list(interfaces)]:
        try:
            opened.append(_open_receiver(ip, group, port, together))
        except OSError as error:
            failure = error
    if failure is not None and not opened:
        raise failure
    return opened


def _open_receiver(ip: int, group: str, port: int, interfaces: Sequence[Interface]) -> socket.socket:
    receiver = new_socket(ip)
    try:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if ip == 4:
            receiver.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
            receiver.bind((group, port))
        else:
            receiver.setsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
            receiver.bind((group, port, 0, interfaces[0].index))
        joined = 0
        failure: OSError | None = None
        for interface in interfaces:
            try:
                _join(receiver, ip, group, interface)
                joined += 1
            except OSError as error:
                failure = error
        if not joined and failure is not None:
            raise failure
    except BaseException:
        receiver.close()
        raise
    return receiver


def _join(receiver: socket.socket, ip: int, group: str, interface: Interface) -> None:
    if ip == 4:
        membership = struct.pack("@4s4si", socket.inet_aton(group), bytes(4), interface.index)
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    else:
        membership = struct.pack("@16sI", socket.inet_pton(socket.AF_INET6, group), interface.index)
        receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, membership)


def open_sender(ip: int, group: str, port: int, interface: Interface, scope: str) -> socket.socket:
    """A socket whose `send` goes to the group through the interface."""
    sender = new_socket(ip)
    try:
        set_hops(sender, ip, scope)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        set_interface(sender, ip, interface)
        sender.connect(group_address(ip, group, port, interface))
    except BaseException:
        sender.close()
        raise
    return sender


def open_own(ip: int, port: int, scope: str) -> socket.socket:
    """The socket that others reach this member by, at `port` if it is free, else at any.

    With IPv6 it reaches IPv4 peers too, as ::ffff:a.b.c.d.
    """
    own = new_socket(ip)
    try:
        set_hops(own, ip, scope)
        if ip == 6:
            own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        host = "0.0.0.0" if ip == 4 else "::"
        try:
            own.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            own.bind((host, 0))
    except BaseException:
        own.close()
        raise
    return own


def new_socket(ip: int) -> socket.socket:
    family = socket.AF_INET if ip == 4 else socket.AF_INET6
    try:
        return udp.open_socket(family)
    except OSError as error:
        # The soft limit on open files is often 1,024, and ours to raise up to the hard one.
        if error.errno != errno.EMFILE or not _raise_file_limit():
            raise
        return udp.open_socket(family)


def _raise_file_limit() -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True


def set_hops(sender: socket.socket, ip: int, scope: str) -> None:
    if ip == 4:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, HOPS[scope])
    else:
        sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, HOPS[scope])


def set_interface(sender: socket.socket, ip: int, interface: Interface) -> None:
    if ip == 4:
        set_ipv4_interface(sender, interface)
    else:
        set_ipv6_interface(sender, interface.index)


def group_address(
    ip: int, group: str, port: int, interface: Interface
) -> tuple[str, int] | tuple[str, int, int, int]:
    return (group, port) if ip == 4 else (group, port, 0, interface.index)
