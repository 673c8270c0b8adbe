"""A broker under whatever strangers send, beside two clients that must not notice.

`Siege` is what the property tests and the long fuzz target share: it feeds bytes into connections and
checks after each step that no exception left the machine, that every packet which came out is one, and
that what the strangers made the broker keep is bounded.
"""

from __future__ import annotations

from hedgerow.broker.limits import Limits
from hedgerow.broker.retained import TOMBSTONE_SHARE, cost
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Connect, Pingreq, Pingresp, Puback, Publish
from tests.broker.harness import Client
from tests.mobility.fake_mobility import MobileWorld

LIMITS = Limits(
    connections=40,
    packet_bytes=2_048,
    receive_maximum=4,
    in_flight=4,
    queue_bytes=4_096,
    queue_messages=16,
    subscriptions=8,
    retained_bytes=32_768,
    topic_alias_maximum=3,
    sessions=24,
)
MAX_CHUNK = 1_024
WITNESS_TOPIC = "witness/only/they/know"


class Siege:
    def __init__(self, durable: bool) -> None:
        self.world = MobileWorld(LIMITS, durable=durable, sys_interval_s=10_000.0)
        self.reader = self.world.connect("witness-reader", kept=True)
        self.reader.subscribe(WITNESS_TOPIC, 1)
        self.writer = self.world.connect("witness-writer", MQTT_3_1_1)
        self.listener = self.world.connect("witness-of-everything")
        self.listener.subscribe("#", 0)
        self.strangers: list[Client] = []

    def open(self) -> None:
        """One more stranger; the oldest goes when there are many."""
        if len(self.strangers) == 8:
            self.strangers.pop(0).lose()
        self.strangers.append(self.world.open())

    def connect(self, packet: Connect) -> None:
        self.open()
        self.send(-1, codec.encode(packet, packet.protocol_version))

    def send(self, stranger: int, data: bytes) -> None:
        if not self.strangers:
            self.open()
        client = self.strangers[stranger % len(self.strangers)]
        for start in range(0, len(data), MAX_CHUNK):
            if client.connection.paused:
                break  # The shell does not read now.
            client.send_bytes(data[start : start + MAX_CHUNK])
            self.check(client)

    def lose(self, stranger: int) -> None:
        if self.strangers:
            self.strangers.pop(stranger % len(self.strangers)).lose()

    def congest(self, stranger: int, congested: bool) -> None:
        if self.strangers:
            client = self.strangers[stranger % len(self.strangers)]
            if not client.closed:
                client.set_congested(congested)
                self.check(client)

    def crash(self) -> None:
        """Only with a store. The witnesses come back; the strangers have to begin anew."""
        self.strangers.clear()
        self.world.crash()
        self.reader = self.world.connect("witness-reader", kept=True)
        self.writer = self.world.connect("witness-writer", MQTT_3_1_1)
        self.listener = self.world.connect("witness-of-everything")
        self.listener.subscribe("#", 0)

    def check(self, client: Client) -> None:
        connection = client.connection
        assert not self.world.broker.stats.connections_failed
        assert len(connection.partial or b"") <= LIMITS.packet_bytes + MAX_CHUNK
        client.version = connection.protocol_version or MQTT_5
        client.take()  # which decodes
        self.listener.take()
        for session in self.world.broker.sessions.values():
            assert len(session.subscriptions or ()) <= LIMITS.subscriptions
            assert len(session.received or ()) <= 65_535
            outbox = session.outbox
            if outbox is not None:
                assert len(outbox.queue) <= LIMITS.queue_messages_in_memory
                unfinished = (*outbox.queue, *outbox.in_flight.values())
                assert outbox.bytes == sum(each.message.size for each in unfinished)
                assert outbox.bytes <= LIMITS.queue_bytes_in_memory
                assert all(packet_id == each.packet_id for packet_id, each in outbox.in_flight.items())
        retained = self.world.broker.retained
        assert retained.bytes == sum(map(cost, retained)) <= LIMITS.retained_bytes
        tombstones = retained.tombstones
        assert tombstones.bytes == sum(map(cost, tombstones)) <= LIMITS.retained_bytes // TOMBSTONE_SHARE

    def finish(self) -> None:
        """The two who mind their own business are served as ever."""
        self.world.advance(5.0)
        for number in range(1, 4):
            self.writer.publish(WITNESS_TOPIC, b"%d" % number, 1, number)
        assert self.writer.take() == [Puback(number) for number in range(1, 4)]
        received = self.reader.take()
        assert [packet.payload for packet in received if isinstance(packet, Publish)] == [b"1", b"2", b"3"]
        self.reader.send(Pingreq())
        assert self.reader.take() == [Pingresp()]
        assert not self.listener.closed
        while self.strangers:
            self.lose(0)
        self.world.advance(100_000.0)
        broker = self.world.broker
        connected = {self.reader.connection, self.writer.connection, self.listener.connection}
        assert broker.connections == connected
        assert broker.timers_held <= 2 * len(broker.sessions) + 1_100
