"""How UDP sockets are opened and read."""

from __future__ import annotations

import errno
import socket

from hedgerow.node import udp


class Scripted:
    """A `recv` that gives and raises what it was told, and then has nothing more."""

    def __init__(self, *steps: bytes | OSError) -> None:
        self.steps = list(steps)

    def recv(self, most_bytes: int) -> bytes:
        if not self.steps:
            raise BlockingIOError
        step = self.steps.pop(0)
        if isinstance(step, OSError):
            raise step
        return step[:most_bytes]


def test_an_error_does_not_hide_what_waits_behind_it() -> None:
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    errors: list[OSError] = []
    read = list(udp.read_turn(Scripted(b"1", refused, b"2").recv, 10, errors.append))
    assert read == [b"1", b"2"]
    assert errors == [refused]
    assert list(udp.read_turn(Scripted(refused, b"1").recv, 10)) == [b"1"]


def test_a_turn_is_bounded() -> None:
    flood = Scripted(*[b"x"] * 1_000)
    assert len(list(udp.read_turn(flood.recv, 10))) == udp.DATAGRAMS_PER_TURN
    broken = Scripted(*[OSError(errno.ENETDOWN, "down")] * 1_000)
    assert list(udp.read_turn(broken.recv, 10)) == []
    assert len(broken.steps) == 1_000 - udp.DATAGRAMS_PER_TURN


def test_sockets_do_not_block() -> None:
    with udp.open_socket(socket.AF_INET) as first, udp.open_socket(socket.AF_INET) as second:
        first.bind(("127.0.0.1", 0))
        assert list(udp.read_turn(first.recv, 100)) == []
        for payload in (b"a", b"b"):
            second.sendto(payload, first.getsockname())
        assert list(udp.read_turn(first.recv, 100)) == [b"a", b"b"]


def test_what_the_system_grants_and_drops_is_told() -> None:
    with udp.open_socket(socket.AF_INET, 8_192) as receiver, udp.open_socket(socket.AF_INET) as sender:
        receiver.bind(("127.0.0.1", 0))
        granted = udp.granted_bytes(receiver)
        assert 0 < granted < udp.RECEIVE_BUFFER_BYTES
        assert udp.count_dropped(receiver) == 0
        for _ in range(100):
            sender.sendto(bytes(1_000), receiver.getsockname())
        read = 0
        while turn := len(list(udp.read_turn(receiver.recv, 2_000))):
            read += turn
        assert 0 < read < 100
        assert udp.count_dropped(receiver) == 100 - read


def test_dropped_datagrams_are_told_once_with_what_helps() -> None:
    watch = udp.DropWatch()
    assert watch.look("udp://127.0.0.1:12345", 0, 212_992) is None
    told = watch.look("udp://127.0.0.1:12345", 7, 212_992)
    assert str(told) == (
        "udp://127.0.0.1:12345: the system dropped 7 datagrams that came faster than this program read: its "
        "receive buffer has 212992 of 4194304 bytes; sysctl -w net.core.rmem_max=4194304"
    )
    assert watch.look("udp://127.0.0.1:12345", 7, 212_992) is None
    again = watch.look("udp://127.0.0.1:12345", 9, udp.RECEIVE_BUFFER_BYTES)
    assert again is not None
    assert again.reason.startswith("the system dropped 2 datagrams")
    assert "too slow" in again.reason
