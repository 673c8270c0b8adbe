"""The loader counts exactly, answers exactly, and ends when a broker does not."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Packet, Puback, Pubcomp, Pubrec, Pubrel
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.broker import FAN_OUT, QOS_1, QOS_2, Shape, load
from hedgerow_workshop.bench.loader import (
    PUBLISHERS,
    SUBSCRIBERS,
    Connection,
    Load,
    Publisher,
    Qos1Publisher,
    Qos1Subscriber,
    Qos2Publisher,
    Qos2Subscriber,
    Subscriber,
)
from hedgerow_workshop.bench.peers import Child
from hedgerow_workshop.bench.wire import Mqtt

TOPIC = "bench/throughput"
PACKET_IDS = (1, 0x3434, 0x6262, 0x5050, 65_535)  # some look like the first byte of a packet
DELIVERY = {qos: Mqtt().delivery(TOPIC, qos) for qos in (0, 1, 2)}


def wire(*packets: Packet) -> bytes:
    return b"".join(encode(packet, MQTT_3_1_1) for packet in packets)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The loader's end of a connection, and the broker's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        yield ours, theirs


def answers(connection: Connection, theirs: socket.socket, data: bytes) -> bytes:
    """What the connection answers when `data` arrives in one piece."""
    theirs.sendall(data)
    connection.receive()
    try:
        return theirs.recv(65_536)
    except BlockingIOError:
        return b""


def check_every_split(subscribe: type[Subscriber], stream: bytes, expected: bytes) -> None:
    """However the stream is cut in two, it is answered in full, in order, and counted once."""
    qos = 1 if subscribe is Qos1Subscriber else 2
    for split in range(1, len(stream)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)
            subscriber = subscribe(ours, DELIVERY[qos])
            sent = answers(subscriber, theirs, stream[:split]) + answers(subscriber, theirs, stream[split:])
            assert sent == expected, split
            assert subscriber.received == len(PACKET_IDS)


@pytest.mark.parametrize(
    ("shape", "messages"),
    [
        (Shape(), 12_000),
        (FAN_OUT, 2_000),
        (Shape(publishers=5), 15_000),
        (QOS_1, 5_000),
        (replace(QOS_1, durable=True), 5_000),
        (QOS_2, 5_000),
    ],
    ids=["qos0-1to1", "qos0-1to10", "qos0-5to1", "qos1-1to1", "qos1-durable", "qos2-1to1"],
)
def test_mosquitto_delivers_what_is_counted(mosquitto_child: Child, shape: Shape, messages: int) -> None:
    loaded = load(mosquitto_child, shape)
    try:
        for _ in range(2):
            measured = loaded.run(seconds=20, messages=messages)
            assert measured.messages == messages
            assert measured.seconds < 20
    finally:
        loaded.close()


def test_a_run_ends_when_its_time_is_up(forwarder: Child) -> None:
    loaded = load(forwarder, Shape())
    try:
        measured = loaded.run(seconds=0.1)
    finally:
        loaded.close()
    assert measured.messages > 0
    assert 0.1 <= measured.seconds < 5


def test_a_broker_that_stalls_is_an_error(forwarder: Child) -> None:
    loaded = load(forwarder, Shape(), stall_s=0.3)
    os.kill(forwarder.pid, signal.SIGSTOP)
    try:
        with pytest.raises(BenchError, match=r"stalled: of 6000 messages sent, .* 0 delivered"):
            loaded.run(seconds=20)
    finally:
        os.kill(forwarder.pid, signal.SIGCONT)
        loaded.close()


def test_a_broker_that_dies_is_an_error(forwarder: Child) -> None:
    loaded = load(forwarder, Shape())
    os.kill(forwarder.pid, signal.SIGKILL)
    try:
        with pytest.raises((BenchError, ConnectionError)):
            loaded.run(seconds=20)
    finally:
        loaded.close()


def test_more_than_was_published_is_an_error(forwarder: Child) -> None:
    loaded = load(forwarder, Shape())
    stranger = forwarder.dialect.connect(forwarder.port)
    try:
        stranger.sendall(DELIVERY[0][:10])
        with pytest.raises(BenchError, match="delivered 10 bytes beyond the 6000 messages published"):
            loaded.run(seconds=20, messages=6_000)
    finally:
        stranger.close()
        loaded.close()


def test_strays_are_not_counted(ends: tuple[socket.socket, socket.socket]) -> None:
    subscriber = Subscriber(ends[0], DELIVERY[0], stray=b"PING\r\n")
    answers(subscriber, ends[1], DELIVERY[0] + b"PING\r\n" + DELIVERY[0])
    assert subscriber.received == 2
    subscriber.check(2)


def test_publishers_take_turns(ends: tuple[socket.socket, socket.socket]) -> None:
    """A window with room for three chunks goes to three publishers, not three times to the first."""
    pairs = [socket.socketpair() for _ in range(3)]
    publishers = [Publisher(ours, [b"x"], 1) for ours, _ in pairs]
    loaded = Load(publishers, [Subscriber(ends[0], b"x")], window=3)
    try:
        ends[1].sendall(b"xxx")
        loaded.run(seconds=20, messages=3)
        assert [publisher.sent for publisher in publishers] == [1, 1, 1]
    finally:
        loaded.close()
        for _, theirs in pairs:
            theirs.close()


def test_qos1_deliveries_are_acknowledged() -> None:
    stream = b"".join(Mqtt().publish(TOPIC, 1, packet_id) for packet_id in PACKET_IDS)
    check_every_split(Qos1Subscriber, stream, wire(*map(Puback, PACKET_IDS)))


QOS_2_STREAM = [
    (packet, answer)
    for packet_id in PACKET_IDS
    for packet, answer in (
        (Mqtt().publish(TOPIC, 2, packet_id), wire(Pubrec(packet_id))),
        (wire(Pubrel(packet_id)), wire(Pubcomp(packet_id))),
    )
]
# As a broker might send them: in turn, all deliveries first, and pairs.
QOS_2_ORDERS = {
    "in turn": QOS_2_STREAM,
    "deliveries first": QOS_2_STREAM[0::2] + QOS_2_STREAM[1::2],
    "in pairs": QOS_2_STREAM[0:4:2] + QOS_2_STREAM[1:4:2] + QOS_2_STREAM[4:],
}


@pytest.mark.parametrize("order", QOS_2_ORDERS)
def test_qos2_deliveries_are_answered(order: str) -> None:
    stream = b"".join(packet for packet, _ in QOS_2_ORDERS[order])
    expected = b"".join(answer for _, answer in QOS_2_ORDERS[order])
    check_every_split(Qos2Subscriber, stream, expected)


def test_a_qos2_delivery_counts_once_released(ends: tuple[socket.socket, socket.socket]) -> None:
    subscriber = Qos2Subscriber(ends[0], DELIVERY[2])
    answers(subscriber, ends[1], Mqtt().publish(TOPIC, 2, 7))
    assert subscriber.received == 0
    answers(subscriber, ends[1], wire(Pubrel(7)))
    assert subscriber.received == 1


def test_qos1_acknowledgements_are_counted(ends: tuple[socket.socket, socket.socket]) -> None:
    publisher = Qos1Publisher(ends[0], [Mqtt().publish(TOPIC, 1, 1)], 1)
    data = wire(Puback(1), Puback(2), Puback(3))
    assert answers(publisher, ends[1], data[:7]) == b""
    assert publisher.acknowledged == 1
    assert answers(publisher, ends[1], data[7:]) == b""
    assert publisher.acknowledged == 3


def test_qos2_publications_are_released(ends: tuple[socket.socket, socket.socket]) -> None:
    publisher = Qos2Publisher(ends[0], [Mqtt().publish(TOPIC, 2, 1)], 1)
    data = wire(Pubrec(1), Pubcomp(0x5050), Pubrec(0x7070), Pubcomp(1), Pubcomp(0x7070))
    sent = b"".join(answers(publisher, ends[1], data[start : start + 3]) for start in range(0, len(data), 3))
    assert sent == wire(Pubrel(1), Pubrel(0x7070))
    assert publisher.acknowledged == 3


def test_what_does_not_fit_the_socket_is_sent_later(ends: tuple[socket.socket, socket.socket]) -> None:
    """In order: the rest of a chunk goes before an answer that was written after it."""
    publisher = Qos2Publisher(ends[0], [b"x" * 10_000_000], 1)
    publisher.send_chunk()
    assert publisher.unsent
    publisher.write(b"end")
    received = b""
    while len(received) < 10_000_003:
        publisher.flush()
        received += ends[1].recv(1 << 20)
    assert received.endswith(b"xend")
    assert not publisher.unsent


def test_every_qos_has_both_sides() -> None:
    assert PUBLISHERS.keys() == SUBSCRIBERS.keys() == {0, 1, 2}


def test_chunks_are_whole(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(ValueError, match="3 packets are no whole number of chunks of 2"):
        Publisher(ends[0], [b"x"] * 3, 2)
