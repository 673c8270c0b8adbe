"""The broker beside a naive one that is nothing but lists and `topics.matches`: same deliveries.

Clients of all versions connect, subscribe with any options, publish at any QoS, unsubscribe, go and
come back. After each step every client has been sent what the model says, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.message import Properties
from hedgerow.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from hedgerow.topics import matches
from tests.broker.harness import Client, World

TOPICS = ("a", "a/b", "a/c", "/", "$p/b")
FILTERS = ("a", "a/b", "a/+", "a/#", "#", "+", "+/b", "/", "$p/#", "$p/+")
CLIENTS = (("old", MQTT_3_1), ("middle", MQTT_3_1_1), ("new", MQTT_5), ("aliases", MQTT_5))


class Delivered(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    retain: bool
    identifiers: tuple[int, ...]


@dataclass
class ModelSession:
    kept: bool
    connected: bool = True
    subscriptions: dict[str, tuple[Subscription, int | None]] = field(default_factory=dict)
    waiting: list[Delivered] = field(default_factory=list)


class ModelBroker:
    def __init__(self) -> None:
        self.sessions: dict[str, ModelSession] = {}
        self.retained: dict[str, tuple[bytes, int]] = {}

    def connect(self, client_id: str, kept: bool) -> None:
        self.disconnect(client_id)
        if not kept or client_id not in self.sessions:
            self.sessions[client_id] = ModelSession(kept)
        self.sessions[client_id].connected = True

    def disconnect(self, client_id: str) -> None:
        session = self.sessions.get(client_id)
        if session is not None and session.connected:
            session.connected = False
            session.waiting.clear()
            if not session.kept:
                del self.sessions[client_id]

    def subscribe(self, client_id: str, wanted: Subscription, identifier: int | None) -> None:
        session = self.sessions[client_id]
        is_new = wanted.topic_filter not in session.subscriptions
        session.subscriptions[wanted.topic_filter] = (wanted, identifier)
        if wanted.retain_handling == 0 or (wanted.retain_handling == 1 and is_new):
            for topic, (payload, qos) in self.retained.items():
                if matches(wanted.topic_filter, topic):
                    identifiers = () if identifier is None else (identifier,)
                    session.waiting.append(Delivered(topic, payload, min(qos, wanted.qos), True, identifiers))

    def unsubscribe(self, client_id: str, topic_filter: str) -> None:
        self.sessions[client_id].subscriptions.pop(topic_filter, None)

    def publish(self, publisher: str, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        if retain and payload:
            self.retained[topic] = (payload, qos)
        elif retain:
            self.retained.pop(topic, None)
        for client_id, session in self.sessions.items():
            matching = [
                (subscription, identifier)
                for subscription, identifier in session.subscriptions.values()
                if matches(subscription.topic_filter, topic)
                and not (subscription.no_local and client_id == publisher)
            ]
            if matching:
                granted = min(qos, max(subscription.qos for subscription, _ in matching))
                keeps_flag = any(subscription.retain_as_published for subscription, _ in matching)
                identifiers = tuple(sorted(number for _, number in matching if number is not None))
                if granted or session.connected:
                    delivered = Delivered(topic, payload, granted, retain and keeps_flag, identifiers)
                    session.waiting.append(delivered)

    def take(self, client_id: str) -> list[Delivered]:
        session = self.sessions[client_id]
        waiting, session.waiting = session.waiting, []
        return waiting


class Pair:
    """Both brokers, and the clients of the real one."""

    def __init__(self) -> None:
        self.model = ModelBroker()
        self.world = World()
        self.clients: dict[str, Client] = {}
        self.aliases: dict[str, dict[int, str]] = {}
        self.count = 0

    def connect(self, index: int, kept: bool) -> None:
        client_id, version = CLIENTS[index]
        properties: Properties = {"topic_alias_maximum": 2} if client_id == "aliases" else {}
        self.model.connect(client_id, kept)
        self.clients[client_id] = self.world.connect(client_id, version, properties, kept=kept)
        self.aliases[client_id] = {}

    def disconnect(self, index: int) -> None:
        client_id, _ = CLIENTS[index]
        self.model.disconnect(client_id)
        if client_id in self.clients:
            self.clients.pop(client_id).lose()

    def subscribe(self, index: int, wanted: Subscription, identifier: int | None) -> None:
        client_id, version = CLIENTS[index]
        if client_id not in self.clients:
            return
        if version < MQTT_5:
            wanted, identifier = Subscription(wanted.topic_filter, wanted.qos), None
        self.model.subscribe(client_id, wanted, identifier)
        properties: Properties = {} if identifier is None else {"subscription_identifier": (identifier,)}
        self.clients[client_id].send(Subscribe(1, [wanted], properties))
        assert self.clients[client_id].take_first(Suback).reason_codes == [wanted.qos]

    def unsubscribe(self, index: int, topic_filter: str) -> None:
        client_id, _ = CLIENTS[index]
        if client_id in self.clients:
            self.model.unsubscribe(client_id, topic_filter)
            self.clients[client_id].send(Unsubscribe(1, [topic_filter]))

    def publish(self, index: int, topic: str, qos: int, retain: bool, empty: bool) -> None:
        client_id, _ = CLIENTS[index]
        if client_id in self.clients:
            self.count += 1
            payload = b"" if empty else b"%d" % self.count
            self.model.publish(client_id, topic, payload, qos, retain)
            self.clients[client_id].publish(topic, payload, qos, retain=retain)
            self.clients[client_id].send(Pubrel(1))

    def compare(self, ordered: bool) -> None:
        for client_id, client in self.clients.items():
            expected = self.model.take(client_id)
            seen = [self._delivered(client_id, packet) for packet in self._take(client)]
            if not ordered:
                expected.sort()
                seen.sort()
            assert seen == expected, client_id

    def _take(self, client: Client) -> list[Publish]:
        """What was delivered; each acknowledged at once."""
        publications: list[Publish] = []
        while packets := client.take():
            for packet in packets:
                self._answer(client, packet)
            publications += [packet for packet in packets if isinstance(packet, Publish)]
        return publications

    def _answer(self, client: Client, packet: Packet) -> None:
        match packet:
            case Publish(qos=1, packet_id=packet_id):
                client.send(Puback(packet_id))
            case Publish(qos=2, packet_id=packet_id):
                client.send(Pubrec(packet_id))
            case Pubrel(packet_id):
                client.send(Pubcomp(packet_id))

    def _delivered(self, client_id: str, packet: Publish) -> Delivered:
        alias = packet.properties.get("topic_alias")
        if alias is not None and packet.topic:
            self.aliases[client_id][alias] = packet.topic
        topic = packet.topic or self.aliases[client_id][alias or 0]
        identifiers = tuple(sorted(packet.properties.get("subscription_identifier", ())))
        return Delivered(topic, packet.payload, packet.qos, packet.retain, identifiers)


clients = st.integers(0, len(CLIENTS) - 1)
subscriptions = st.builds(
    Subscription,
    st.sampled_from(FILTERS),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)
publications = st.tuples(
    st.just("publish"),
    clients,
    st.sampled_from(TOPICS),
    st.integers(0, 2),
    st.booleans(),
    st.integers(0, 9).map(lambda number: number == 9),
)
steps = st.one_of(
    publications,
    st.tuples(st.just("subscribe"), clients, subscriptions, st.none() | st.integers(1, 300)),
    publications,
    st.tuples(st.just("connect"), clients, st.booleans()),
    publications,
    st.tuples(st.just("unsubscribe"), clients, st.sampled_from(FILTERS)),
    publications,
    st.tuples(st.just("disconnect"), clients),
)


@settings(max_examples=150)
@given(st.lists(steps, min_size=40, max_size=120))
def test_the_broker_delivers_what_a_naive_one_does(story: list[tuple[object, ...]]) -> None:
    pair = Pair()
    for index in range(len(CLIENTS)):
        pair.connect(index, kept=index % 2 == 0)
    for name, *arguments in story:
        getattr(pair, str(name))(*arguments)
        # Retained messages of different topics come in any order.
        pair.compare(ordered=name != "subscribe")
