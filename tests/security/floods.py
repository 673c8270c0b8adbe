"""Clients that flood a node, as a process: `python -m tests.security.floods NAME PORT`, until it is ended.

Each sends bytes made beforehand, as fast as the node takes them, and throws away what it is sent.
"""

from __future__ import annotations

import itertools
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from threading import Thread

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import (
    MQTT_5,
    Connect,
    Disconnect,
    Pingreq,
    Publish,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
)

PING = encode(Pingreq(), MQTT_5)

Flood = Callable[[int], None]
"""Given the node's port, until the process is ended."""


def connect(port: int, client_id: str, **properties: int) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", port), 10)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.sendall(encode(Connect(client_id, MQTT_5, properties=properties), MQTT_5))  # type: ignore[arg-type]
    first, size = link.recv(2)
    assert first == 0x20
    assert len(link.recv(size)) == size
    return link


def send_and_discard(link: socket.socket, pieces: Iterator[bytes]) -> None:
    """Send as fast as the node reads, and read as fast as it writes, until it ends the connection."""
    link.settimeout(0.001)
    data = memoryview(b"")
    while True:
        try:
            if not data:
                data = memoryview(next(pieces))
            data = data[link.send(data) :]
        except TimeoutError:
            pass
        except (OSError, StopIteration):
            return
        try:
            while link.recv(1 << 18):
                pass
        except TimeoutError:
            pass
        except OSError:
            return


def again(data: bytes) -> Iterator[bytes]:
    while True:
        yield data


def deep_filters(port: int) -> None:
    filters = [
        "/".join(["+" if number >> bit & 1 else "a" for bit in range(10)] + ["+"] * 189 + ["x"])
        for number in range(760)
    ]
    pieces = [encode(Subscribe(1, [Subscription(each) for each in filters]), MQTT_5)]
    names = ["/".join(["a"] * 198 + [str(number)]) for number in range(200)]
    flood = b"".join(encode(Publish(name, b"x"), MQTT_5) for name in names)

    def all_pieces() -> Iterator[bytes]:
        yield from pieces
        yield from again(flood)

    with connect(port, "deep") as link:
        send_and_discard(link, all_pieces())


def retained_scans(port: int) -> None:
    retained = b"".join(encode(Publish(f"r/{number}", b"x", retain=True), MQTT_5) for number in range(60_000))
    with connect(port, "retained") as link:
        link.sendall(retained + PING)
        assert link.recv(2) == b"\xd0\0"
    scans = b"".join(encode(Subscribe(1, [Subscription("#")]), MQTT_5) for _ in range(60))
    scans += b"".join(encode(Subscribe(1, [Subscription(f"+/+/{number}")]), MQTT_5) for number in range(60))
    with ExitStack() as stack:
        links = [stack.enter_context(connect(port, f"scan {number}")) for number in range(4)]
        threads = [Thread(target=send_and_discard, args=(link, again(scans))) for link in links]
        run_all(threads)


def sessions(port: int) -> None:
    for number in range(100_000):
        with connect(port, f"session {number}", session_expiry_interval=3_600) as link:
            link.sendall(encode(Disconnect(), MQTT_5))


def connections(port: int) -> None:
    begun = encode(Connect("x" * 60_000, MQTT_5), MQTT_5)[:50_000]
    with ExitStack() as stack:
        for _ in range(500):
            try:
                link = stack.enter_context(socket.create_connection(("127.0.0.1", port), 1))
                link.sendall(begun)
            except OSError:
                pass  # refused: there are too many
        time.sleep(60)


def logins(port: int) -> None:
    """Wrong passwords, as fast as they are refused, each of which costs the node a slow hash."""

    def guess(name: str) -> None:
        for number in itertools.count():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as link:
                wrong = Connect(f"{name} {number}", MQTT_5, username="ada", password=b"%d" % number)
                link.sendall(encode(wrong, MQTT_5))
                link.recv(100)

    run_all([Thread(target=guess, args=(f"guess {number}",)) for number in range(16)])


def reconnections(port: int) -> None:
    """Connections that are good and end at once."""
    for number in itertools.count():
        with connect(port, f"passing {number}") as link:
            link.sendall(encode(Disconnect(), MQTT_5))


def control_packets(port: int) -> None:
    churn = b"".join(
        encode(Subscribe(1, [Subscription(f"+/{number}/#")]), MQTT_5)
        + encode(Unsubscribe(2, [f"+/{number}/#"]), MQTT_5)
        for number in range(2_000)
    )
    releases = b"".join(encode(Pubrel(number), MQTT_5) for number in range(1, 20_000))
    floods = [PING * 50_000, churn, releases, PING * 50_000, churn, releases]
    with ExitStack() as stack:
        links = [stack.enter_context(connect(port, f"control {number}")) for number in range(len(floods))]
        run_all(
            [
                Thread(target=send_and_discard, args=(link, again(flood)))
                for link, flood in zip(links, floods, strict=True)
            ]
        )


def run_all(threads: list[Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


FLOODS: dict[str, Flood] = {
    flood.__name__: flood
    for flood in (
        deep_filters,
        retained_scans,
        sessions,
        logins,
        connections,
        reconnections,
        control_packets,
    )
}

if __name__ == "__main__":
    FLOODS[sys.argv[1]](int(sys.argv[2]))
