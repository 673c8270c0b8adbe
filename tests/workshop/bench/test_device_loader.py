"""The driver of `bench devices`, against sockets whose other ends a test holds."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Puback, Pubcomp, Publish, Pubrec, Pubrel
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.device_loader import (
    ByteCounter,
    Crowd,
    Device,
    Qos1Device,
    Qos2Device,
    Reader,
    Traffic,
)
from hedgerow_workshop.bench.device_storm import Storm
from hedgerow_workshop.bench.device_wire import framed, payload, publication
from hedgerow_workshop.bench.wire import Mqtt, Nats

TOPIC = "site/1/device/0001/state"


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    crowd = Crowd()
    yield crowd
    crowd.close()


def pair() -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    far.settimeout(5)
    return near, far


def test_payloads_have_sizes_of_their_own() -> None:
    sizes = {len(payload(number)) for number in range(500)}
    assert min(sizes) == 60
    assert max(sizes) == 300


@pytest.mark.parametrize("dialect", [Mqtt(), Nats()])
def test_where_the_number_of_a_message_stands(dialect: Mqtt | Nats) -> None:
    packet = publication(dialect, TOPIC, 3)
    assert packet.data[packet.index_at : packet.index_at + 8] == b"00000000"


def test_a_frame_leaves_the_packet_as_it_is() -> None:
    for size in (4, 200):
        assert framed(bytes(size)).endswith(bytes(4) + bytes(size))


def test_a_device_at_qos_1_sends_the_next_when_the_last_is_acknowledged(crowd: Crowd) -> None:
    near, far = pair()
    with far:
        packet = publication(Mqtt(), TOPIC, 1, 1)
        device = Qos1Device(crowd, near, packet)
        crowd.is_open = True
        device.publish()
        assert far.recv(4_096) == packet.data
        far.send(encode(Puback(1), MQTT_3_1_1))
        crowd.turn()
        assert far.recv(4_096) == packet.data
        assert (crowd.sent, crowd.acknowledged, device.is_waiting) == (2, 1, True)
        crowd.is_open = False
        far.send(encode(Puback(1), MQTT_3_1_1))
        crowd.turn()
        assert (crowd.sent, crowd.acknowledged, device.is_waiting) == (2, 2, False)
        far.send(encode(Puback(2), MQTT_3_1_1))
        with pytest.raises(BenchError, match="answered a PUBLISH with"):
            crowd.turn()


def test_a_device_at_qos_2_releases(crowd: Crowd) -> None:
    near, far = pair()
    with far:
        device = Qos2Device(crowd, near, publication(Mqtt(), TOPIC, 1, 2))
        device.publish()
        far.recv(4_096)
        far.send(encode(Pubrec(1), MQTT_3_1_1))
        crowd.turn()
        assert far.recv(4_096) == encode(Pubrel(1), MQTT_3_1_1)
        far.send(encode(Pubcomp(1), MQTT_3_1_1))
        crowd.turn()
        assert crowd.acknowledged == 1


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_reader_finds_packets_in_whatever_pieces_they_come(crowd: Crowd, step: int) -> None:
    near, far = pair()
    seen: list[bytes] = []
    crowd.note = lambda data, at: seen.append(data[at : at + 14])
    with far:
        Reader(crowd, near)
        data = b"".join(
            encode(
                Publish(TOPIC, payload(number), number % 3, packet_id=number if number % 3 else 0), MQTT_3_1_1
            )
            for number in range(1, 10)
        ) + encode(Pubrel(2), MQTT_3_1_1)
        for start in range(0, len(data), step):
            far.send(data[start : start + step])
            crowd.turn()
        assert seen == [b'{"n":"00000000'] * 9
        # At QoS 2 one is complete when it is released: of three, one is.
        assert crowd.received == 7
        answers = b""
        while len(answers) < 7 * 4:
            answers += far.recv(4_096)
        assert answers.count(b"\x40\x02") == answers.count(b"\x50\x02") == 3


def test_what_does_not_come_at_qos_0_is_lost(crowd: Crowd) -> None:
    near, far = pair()
    subscriber, deliveries = pair()
    with far, deliveries:
        device = Device(crowd, near, publication(Mqtt(), TOPIC, 1))
        ByteCounter(crowd, subscriber)
        deliveries.send(device.packet)
        measured = Traffic(crowd, [device], counts_bytes=True, window=10, quiet_s=0.05).run(0.01)
        assert measured.deliveries == 1
        assert measured.lost == crowd.sent - 1 > 0


def test_a_message_that_does_not_come_at_qos_1_is_an_error(crowd: Crowd) -> None:
    near, far = pair()
    with far:
        device = Qos1Device(crowd, near, publication(Mqtt(), TOPIC, 1, 1))
        with pytest.raises(BenchError, match="stalled: of 1 messages sent, 0 were acknowledged"):
            Traffic(crowd, [device], stall_s=0.05).run(0.01)


def test_a_paced_run_measures_each_message(crowd: Crowd) -> None:
    """Whatever the device sends comes back to the subscriber."""
    near, far = pair()
    subscriber, deliveries = pair()

    def forward() -> None:
        while data := far.recv(65_536):
            deliveries.sendall(data)

    thread = threading.Thread(target=forward)
    thread.start()
    with far, deliveries:
        device = Device(crowd, near, publication(Mqtt(), TOPIC, 1))
        ByteCounter(crowd, subscriber)
        measured = Traffic(crowd, [device], counts_bytes=True).run_paced(0.1, 200)
        near.shutdown(socket.SHUT_WR)
        thread.join()
    assert measured.lost == 0
    assert measured.deliveries == len(measured.latencies) == crowd.sent > 1
    assert all(0 < latency < 5e9 for latency in measured.latencies)


def test_pings_of_the_server_are_no_messages(crowd: Crowd) -> None:
    near, far = pair()
    with far:
        ByteCounter(crowd, near, pings=True)
        far.send(b"MSG a 1 3\r\nabc\r\nPING\r\n")
        crowd.turn()
        assert crowd.received_bytes == len(b"MSG a 1 3\r\nabc\r\n")


def test_a_storm_says_who_was_not_let_in() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def refuse() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(4_096)
                accepted.send(b"\x20\x02\0\x05")

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(BenchError, match="instead of"):
            Storm(port, [((b"hello", b"\x20\x02\0\0"),)], lambda *_: None).run()
        thread.join()
