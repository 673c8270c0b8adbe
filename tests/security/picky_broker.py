"""A far broker that answers as brokers do, and closes on messages that it does not like."""

from __future__ import annotations

from collections.abc import Callable

from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Pubcomp,
    Publish,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from tests.bridges.harness import Network, Script


class PickyBroker:
    """`refuses`: of a PUBLISH, the reason code with which it disconnects; 0: it closes without one; None: it
    takes it. `answers`: the reason code of its PUBACK or PUBREC."""

    def __init__(self, network: Network, host: str = "south") -> None:
        self.network = network
        self.refuses: Callable[[Publish], int | None] = lambda packet: None
        self.answers: Callable[[Publish], int] = lambda packet: 0
        self.acknowledges: Callable[[Publish], bool] = lambda packet: True
        self.connack = Connack()
        self.keeps_sessions = True
        self.judges_qos_0 = False
        self.taken: list[Publish] = []
        self.refused: list[Publish] = []
        self.connections = 0
        self.pings = 0
        network.scripts[host] = self._open

    @property
    def payloads(self) -> list[bytes]:
        return [packet.payload for packet in self.taken]

    def _open(self) -> Script:
        self.connections += 1
        return _PickyConnection(self)


class _PickyConnection(Script):
    def __init__(self, broker: PickyBroker) -> None:
        super().__init__(broker.network)
        self.broker = broker

    def receive_data(self, data: bytes, now: float) -> None:
        super().receive_data(data, now)
        for packet in self.take():
            if self.is_lost:
                return
            self._answer(packet)

    def _answer(self, packet: Packet) -> None:
        broker = self.broker
        answers: list[Packet] = []
        if isinstance(packet, Connect):
            broker.connack.session_present = broker.keeps_sessions and broker.connections > 1
            answers = [broker.connack]
        elif isinstance(packet, Subscribe):
            answers = [Suback(packet.packet_id, [each.qos for each in packet.subscriptions])]
        elif isinstance(packet, Unsubscribe):
            answers = [Unsuback(packet.packet_id, [0] * len(packet.topic_filters))]
        elif isinstance(packet, Pingreq):
            broker.pings += 1
            answers = [Pingresp()]
        elif isinstance(packet, Pubrel):
            answers = [Pubcomp(packet.packet_id)]
        elif isinstance(packet, Publish) and not packet.qos:
            reason = broker.refuses(packet) if broker.judges_qos_0 else None
            if reason is not None:
                self._close(reason)
        elif isinstance(packet, Publish):
            reason = broker.refuses(packet)
            if reason is not None:
                broker.refused.append(packet)
                self._close(reason)
                return
            code = broker.answers(packet)
            if not code:
                broker.taken.append(packet)
            if not broker.acknowledges(packet):
                return
            first = b"\x40" if packet.qos == 1 else b"\x50"  # The codec writes no code that they cannot have.
            said = bytes((code,)) if code and self.version == MQTT_5 else b""
            body = packet.packet_id.to_bytes(2, "big") + said
            self.link.wire.carry(1, first + bytes((len(body),)) + body)
        for each in answers:
            self.send_later(each)

    def send_later(self, packet: Packet) -> None:
        self.link.wire.carry(1, codec.encode(packet, self.version))

    def _close(self, reason: int) -> None:
        if reason and self.version == MQTT_5:
            self.send_later(Disconnect(reason))
        self.link.wire.close(1)
