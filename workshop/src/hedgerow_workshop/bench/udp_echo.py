"""The limit for a UDP broker in Python: `python -m hedgerow_workshop.bench.udp_echo PORT [fan-out]`.

It prints the port, which the system chooses where it is 0.
The echo sends each datagram back to where it came from; it looks at nothing. The fan-out looks at role and
topic: who sends a subscription is remembered, and everything else goes to those who subscribed to its topic.
"""

from __future__ import annotations

import socket
import sys

_RECEIVE_BYTES = 65_507
_ROLE, _SUBSCRIBER = 5, ord("0")
_TOPIC = slice(6, 8)


def echo(bound: socket.socket) -> None:
    receive, send = bound.recvfrom, bound.sendto
    while True:
        data, source = receive(_RECEIVE_BYTES)
        send(data, source)


def fan_out(bound: socket.socket) -> None:
    receive, send = bound.recvfrom, bound.sendto
    subscribers: dict[bytes, list[tuple[str, int]]] = {}
    while True:
        data, source = receive(_RECEIVE_BYTES)
        if data[_ROLE] == _SUBSCRIBER:
            subscribers.setdefault(data[_TOPIC], []).append(source)
            continue
        for subscriber in subscribers.get(data[_TOPIC], ()):
            send(data, subscriber)


if __name__ == "__main__":
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", int(sys.argv[1])))
        print(f"listening udp://127.0.0.1:{opened.getsockname()[1]}", flush=True)
        (fan_out if "fan-out" in sys.argv[2:] else echo)(opened)
