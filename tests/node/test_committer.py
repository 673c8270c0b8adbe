"""A store that cannot grow, on a live node: nothing is acknowledged, nothing is lost, all goes on later."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_3_1_1, Connect, Packet, Publish, Subscribe, Subscription
from tests.conftest import StartNode
from tests.programs import wait_until

COUNT = 600
FILE_BYTES = 300_000  # room for some of the messages, not for all


def encode(*packets: Packet) -> bytes:
    return b"".join(codec.encode(packet, MQTT_3_1_1) for packet in packets)


def read_exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = client.recv(size - len(data))
        assert chunk, "the node closed the connection"
        data += chunk
    return data


def connect(port: int, client_id: str, *, clean: bool) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    client.sendall(encode(Connect(client_id, MQTT_3_1_1, clean_start=clean)))
    assert read_exactly(client, 4)[3] == 0
    return client


def test_a_full_disk_holds_acknowledgements_until_there_is_room(
    hedgerow_node: StartNode, tmp_path: Path
) -> None:
    node = hedgerow_node("--data", str(tmp_path / "data"))
    assert node.process is not None
    with connect(node.port(), "absent", clean=False) as subscriber:
        subscriber.sendall(encode(Subscribe(1, [Subscription("#", 1)])))
        read_exactly(subscriber, 5)
    limits = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (FILE_BYTES, resource.RLIM_INFINITY))
    with connect(node.port(), "publisher", clean=True) as publisher:
        for packet_id in range(1, COUNT + 1):
            payload = b"%d " % packet_id + bytes(2000)
            publisher.sendall(encode(Publish("a", payload, qos=1, packet_id=packet_id)))
        wait_until(lambda: "not acknowledged until" in node.log, "the log to say that the store fails")
        with connect(node.port(), "other", clean=True) as other:
            other.sendall(encode(Subscribe(1, [Subscription("b")]), Publish("b", b"at most once")))
            assert read_exactly(other, 5)[0] == 0x90
            assert read_exactly(other, 17).endswith(b"at most once")
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, limits)
        acknowledged = read_exactly(publisher, 4 * COUNT)
        assert acknowledged == b"".join(b"\x40\x02" + n.to_bytes(2, "big") for n in range(1, COUNT + 1))
    wait_until(lambda: "the store works again" in node.log, "the log to say that it works again")
    node.kill9()
    node.start()
    with connect(node.port(), "absent", clean=False) as subscriber:
        for n in range(1, COUNT + 1):
            header = read_exactly(subscriber, 3)
            size = (header[1] & 0x7F) + 128 * header[2]
            body = read_exactly(subscriber, size)
            assert body[5:].startswith(b"%d " % n)
            subscriber.sendall(b"\x40\x02" + body[3:5])
