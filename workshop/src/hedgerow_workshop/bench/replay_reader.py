"""A client that reads a node's past, as fast as it comes, at next to no cost of its own.

As a program it does so again and again until it is ended: what others are measured beside.
"""

from __future__ import annotations

import argparse
import select
import socket
import time
from contextlib import closing

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Subscribe, Subscription
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.loader import SUBSCRIBERS, Subscriber
from hedgerow_workshop.bench.wire import Mqtt

NAME = "$replay/all/"
STALL_S = 20.0
_SUBACK_BYTES = 5


def begin(port: int, topic_filter: str, delivery: bytes, qos: int, client_id: str = "") -> Subscriber:
    """Subscribe, and return before the first message has come."""
    connection = Mqtt().connect(port, client_id, clean_start=not client_id)
    connection.sendall(encode(Subscribe(1, [Subscription(NAME + topic_filter, qos)]), MQTT_3_1_1))
    answer = connection.recv(_SUBACK_BYTES, socket.MSG_WAITALL)
    if len(answer) != _SUBACK_BYTES or answer[-1] != qos:
        raise BenchError(f"refused a replay: {answer!r}")
    return SUBSCRIBERS[qos](connection, delivery)


def read(subscriber: Subscriber, count: int) -> float:
    """Read so many messages; the seconds that it took."""
    started = heard_at = time.perf_counter()
    with select.epoll() as poll:
        poll.register(subscriber.socket.fileno(), select.EPOLLIN)
        while subscriber.received < count:
            waits = select.EPOLLOUT if subscriber.unsent else 0
            poll.modify(subscriber.socket.fileno(), select.EPOLLIN | waits)
            for _, event in poll.poll(1.0):
                if event & select.EPOLLOUT:
                    subscriber.flush()
                if event & ~select.EPOLLOUT and subscriber.receive():
                    heard_at = time.perf_counter()
            if time.perf_counter() > heard_at + STALL_S:
                raise BenchError(f"stalled: {subscriber.received} of {count} messages came")
    subscriber.check(count)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("topic")
    parser.add_argument("count", type=int)
    parser.add_argument("qos", type=int)
    arguments = parser.parse_args()
    delivery = Mqtt().delivery(arguments.topic, arguments.qos)
    while True:
        subscriber = begin(arguments.port, arguments.topic, delivery, arguments.qos)
        with closing(subscriber.socket):
            read(subscriber, arguments.count)


if __name__ == "__main__":
    main()
