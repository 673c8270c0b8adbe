"""The gateway: between brokers and a group of members on one simulated network.

`Group` is the network: what a member publishes waits there until the test lets it arrive, at every member
that subscribes, the sender's own included if the network echoes.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.broker.batch import Batch
from hedgerow.broker.limits import Limits
from hedgerow.broker.observer import Observer
from hedgerow.broker.port import Port
from hedgerow.broker.publishing import publish_message
from hedgerow.duplicates import DuplicateLog
from hedgerow.errors import RefusedError, TopicError
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Publish, Suback, Subscribe, Subscription
from hedgerow.mqtt.reasons import Reason
from hedgerow.multicast.gateway import MAX_WAITING_BYTES, Gateway, GatewayLedger, check_filter
from hedgerow.topics import matches
from tests.broker.harness import Client, World

MAX_PAYLOAD = 1_000


class Group:
    def __init__(self, *, echoes: bool = False, repeats: int = 1) -> None:
        self.members: list[RecordingMember] = []
        self.echoes = echoes
        self.repeats = repeats
        self.sent: list[tuple[RecordingMember, Message]] = []

    def arrive(self) -> bool:
        """Everything under way arrives; False when there was nothing."""
        sent, self.sent = self.sent, []
        for sender, message in sent:
            for member in self.members:
                if member is not sender or self.echoes:
                    for _ in range(self.repeats):
                        member.hear(message)
        return bool(sent)


class RecordingMember:
    """A member that keeps what it was asked, and drops no duplicates: that is left to the gateway."""

    def __init__(self, group: Group, name: str) -> None:
        self.group = group
        self.name = name
        self.filters: set[str] = set()
        self.published: list[Message] = []
        self.held: dict[str, Message] = {}
        self.ready_at = 0.0
        self._heard: list[Message] = []
        self._told: list[Message] = []
        self._sequence = 0
        group.members.append(self)

    def publish(self, message: Message, now: float) -> None:
        self._check(message)
        if message.id is None:
            self._sequence += 1
            message.id = MessageId(self.name, 1, self._sequence)
        self.published.append(message)
        if message.retain:
            self.held[message.topic] = message
        self.group.sent.append((self, message))

    def hold(self, message: Message, now: float) -> None:
        self._check(message)
        self.held[message.topic] = message

    def subscribe(self, topic_filter: str, now: float) -> None:
        self.filters.add(topic_filter)
        for member in self.group.members:
            for message in member.held.values():
                if member is not self and matches(topic_filter, message.topic):
                    self._told.append(message)

    def unsubscribe(self, topic_filter: str, now: float) -> None:
        self.filters.discard(topic_filter)

    def take_messages(self) -> list[Message]:
        heard, self._heard = self._heard, []
        return heard

    def take_held(self) -> list[Message]:
        told, self._told = self._told, []
        return told

    def hear(self, message: Message) -> None:
        if any(matches(each, message.topic) for each in self.filters):
            self._heard.append(message)

    def _check(self, message: Message) -> None:
        if len(message.payload) > MAX_PAYLOAD:
            raise RefusedError("too large", Reason.PACKET_TOO_LARGE)


class Device(RecordingMember):
    """Something on the network that has no broker."""

    def __init__(self, group: Group, name: str, *topic_filters: str) -> None:
        super().__init__(group, name)
        for topic_filter in topic_filters:
            self.subscribe(topic_filter, 0.0)

    def say(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        self.publish(Message(topic, payload, qos, retain), 0.0)


class Node:
    """A broker with a gateway, as the shell runs them."""

    def __init__(
        self,
        group: Group,
        name: str,
        *topic_filters: str,
        limits: Limits | None = None,
        durable: bool = False,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self.world = World(limits, durable=durable)
        self.max_waiting_bytes = max_waiting_bytes
        self.name = name
        self.group = group
        self.topic_filters = topic_filters or ("farm/#",)
        self.world.broker.node_id = name

    def open(self) -> Node:
        self.member = RecordingMember(self.group, self.name)
        self.gateway = Gateway(
            self.world.broker, self.member, self.topic_filters, self.world.now, self.max_waiting_bytes
        )
        self.settle()
        return self

    def settle(self) -> bool:
        held, messages = self.member.take_held(), self.member.take_messages()
        self.gateway.receive_held(held, self.world.now)
        self.gateway.receive_messages(messages, self.world.now)
        self.world.settle()
        return bool(held or messages)

    def connect(self, name: str, *topic_filters: str, version: int = MQTT_5) -> Client:
        client = self.world.connect(name, version)
        for topic_filter in topic_filters:
            client.subscribe(topic_filter, 1)
        return client


def settle(group: Group, *nodes: Node) -> None:
    """Let everything arrive, until nothing is under way. A loop would never end."""
    for _ in range(100):
        arrived = group.arrive()
        heard = [node.settle() for node in nodes]
        if not arrived and not any(heard):
            break
    else:
        pytest.fail("messages go round")
    for node in nodes:
        for ledger in node.gateway.to_group, node.gateway.to_broker:
            published, *others = astuple(ledger)
            assert published == sum(others)


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


# Both ways


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_client_and_a_device_hear_each_other(version: int) -> None:
    group = Group()
    device = Device(group, "device", "farm/#")
    node = Node(group, "node").open()
    client = node.connect("client", "farm/+/state", version=version)
    device.say("farm/mop/state", b"idle")
    client.publish("farm/vacuum/state", b"done", 1, packet_id=7)
    client.take()
    settle(group, node)
    [heard] = device.take_messages()
    assert (heard.topic, heard.payload, heard.qos, heard.id) == (
        "farm/vacuum/state",
        b"done",
        1,
        MessageId("node", 1, 1),
    )
    assert client.take() == [Publish("farm/mop/state", b"idle")]
    assert node.gateway.to_group == GatewayLedger(published=1, relayed=1)
    assert node.gateway.to_broker == GatewayLedger(published=1, relayed=1)


def test_only_the_chosen_topics_flow() -> None:
    group = Group()
    device = Device(group, "device", "#")
    node = Node(group, "node", "farm/#", "house/+").open()
    client = node.connect("client", "#")
    for topic in ("farm/a/b", "house/x", "house/x/y", "office"):
        device.say(topic, b"device " + topic.encode())
        client.publish(topic, b"client " + topic.encode())
    client.take()
    settle(group, node)
    assert client.take_payloads() == [b"device farm/a/b", b"device house/x"]
    assert payloads(device.take_messages()) == [b"client farm/a/b", b"client house/x"]


def test_dollar_topics_never_flow() -> None:
    group = Group()
    device = Device(group, "device", "#", "$SYS/#")
    node = Node(group, "node", "#").open()
    watcher = node.connect("watcher", "$SYS/#", "$other/#")
    broker = node.world.broker
    publish_message(broker, Message("$SYS/x", b"1"), broker.find_route("$SYS/x"), None)
    node.gateway.receive_messages([Message("$other/x", b"2", id=MessageId("device", 1, 1))], node.world.now)
    watcher.publish("$other/y", b"3")
    settle(group, node)
    assert device.take_messages() == []
    assert watcher.take_payloads() == [b"1", b"3"]
    assert node.gateway.to_broker == GatewayLedger(published=1, refused=1)


@pytest.mark.parametrize("topic_filter", ["$SYS/#", "$share/group/farm/#", "a/#/b", ""])
def test_a_filter_that_cannot_flow_is_refused(topic_filter: str) -> None:
    with pytest.raises(TopicError):
        check_filter(topic_filter)
    with pytest.raises(TopicError):
        Node(Group(), "node", topic_filter).open()


# No loops, no duplicates


@pytest.mark.parametrize("echoes", [False, True])
@pytest.mark.parametrize("repeats", [1, 3])
def test_two_gateways_pass_each_message_once(echoes: bool, repeats: int) -> None:
    group = Group(echoes=echoes, repeats=repeats)
    device = Device(group, "device", "farm/#")
    one, two = Node(group, "one").open(), Node(group, "two").open()
    client_one, client_two = one.connect("c1", "#"), two.connect("c2", "#")
    device.say("farm/a", b"from the device")
    client_one.publish("farm/b", b"from one")
    client_two.publish("farm/c", b"from two")
    settle(group, one, two)
    for client in client_one, client_two:
        assert sorted(client.take_payloads()) == [b"from one", b"from the device", b"from two"]
    assert sorted(payloads(one.member.published + two.member.published)) == [b"from one", b"from two"]
    heard = {message.id for message in device.take_messages() if message.payload != b"from the device"}
    assert heard == {MessageId("one", 1, 1), MessageId("two", 1, 1)}


def test_overlapping_filters_are_one() -> None:
    group = Group()
    node = Node(group, "node", "farm/#", "farm/+", "farm/a").open()
    node.connect("client").send(Publish("farm/a", b"1"), Publish("farm/a", b"2"))
    settle(group, node)
    assert payloads(node.member.published) == [b"1", b"2"]


def test_a_copy_that_came_by_another_way_is_dropped() -> None:
    group = Group()
    device = Device(group, "device")
    node = Node(group, "node").open()
    client = node.connect("client", "#")
    other_link = Port(node.world.broker, "bridge", lambda message: None)
    for payload in b"group first", b"bridge first":
        device.say("farm/a", payload)
    by_group, by_bridge = device.published
    group.sent = group.sent[:1]
    settle(group, node)
    assert other_link.is_duplicate(by_group)
    assert not other_link.is_duplicate(by_bridge)
    other_link.publish(by_bridge, node.world.now)
    node.gateway.receive_messages([by_bridge], node.world.now)
    settle(group, node)
    assert client.take_payloads() == [b"group first", b"bridge first"]
    assert node.gateway.to_broker == GatewayLedger(published=2, relayed=1, duplicates=1)


class Path:
    """A link beside the network, as a bridge is: what one broker hears is published at the other, once."""

    def __init__(self, one: Node, two: Node) -> None:
        self.ends = [Port(each.world.broker, "bridge", lambda message: None) for each in (one, two)]
        for end, other in zip(self.ends, reversed(self.ends), strict=True):
            end.deliver = partial(self._carry, other)
            end.subscribe("farm/#", one.world.now)
        self.under_way: list[tuple[Port, Message]] = []

    def _carry(self, end: Port, message: Message) -> None:
        self.under_way.append((end, message))

    def arrive(self) -> None:
        under_way, self.under_way = self.under_way, []
        for end, message in under_way:
            if not end.is_duplicate(message):
                end.publish(replace(message))


@pytest.mark.parametrize("network_first", [False, True])
def test_gateways_and_a_path_beside_them_deliver_once(network_first: bool) -> None:
    """The path joins one and two; three is reached by the network alone, and four by the path alone.

    device ── network ── one ══ two ── network
                 └─ three        ╚══ four
    """
    group, nowhere = Group(), Group()
    device = Device(group, "device", "farm/#")
    nodes = [Node(group, name).open() for name in ("one", "two", "three")]
    nodes.append(Node(nowhere, "four").open())
    paths = [Path(nodes[0], nodes[1]), Path(nodes[1], nodes[3])]
    clients = [node.connect("client", "#") for node in nodes]
    device.say("farm/a", b"device")
    for client, name in zip(clients, (b"one", b"two", b"three", b"four"), strict=True):
        client.publish("farm/a", name)
    for _ in range(5):
        if network_first:
            settle(group, *nodes)
        for path in paths:
            path.arrive()
        settle(group, *nodes)
    assert not any(path.under_way for path in paths)
    for client in clients:
        assert sorted(client.take_payloads()) == [b"device", b"four", b"one", b"three", b"two"]
    heard = [each.payload for each in device.take_messages()]
    assert sorted(set(heard)) == [b"four", b"one", b"three", b"two"]
    assert all(len(node.member.published) <= 5 for node in nodes)


# Retained messages


def test_what_the_broker_retains_at_the_start_is_held_and_not_sent() -> None:
    group = Group()
    node = Node(group, "node", "farm/#", "farm/+")
    client = node.connect("client")
    client.publish("farm/a", b"kept", retain=True)
    client.publish("office", b"kept", retain=True)
    client.publish("farm/b", b"live")
    node.open()
    settle(group, node)
    assert node.member.published == []
    [held] = node.member.held.values()
    assert (held.topic, held.payload, held.retain) == ("farm/a", b"kept", True)
    assert node.gateway.to_group == GatewayLedger(published=2, held=1, duplicates=1)
    late = Device(group, "late", "farm/#")
    assert payloads(late.take_held()) == [b"kept"]


def test_live_retained_messages_flow_as_retained() -> None:
    group = Group()
    device = Device(group, "device", "farm/#")
    node = Node(group, "node").open()
    client = node.connect("client")
    client.publish("farm/a", b"from the client", 1, retain=True)
    client.take()
    device.say("farm/b", b"from the device", 1, retain=True)
    settle(group, node)
    [heard] = device.take_messages()
    assert (heard.payload, heard.retain, heard.qos) == (b"from the client", True, 1)
    late = node.connect("late")
    late.send(Subscribe(1, [Subscription("farm/b", 1)]))
    assert late.take() == [Suback(1, [1]), Publish("farm/b", b"from the device", 1, True, packet_id=1)]


def test_an_empty_retained_message_forgets_on_both_sides() -> None:
    group = Group()
    node = Node(group, "node").open()
    device = Device(group, "device", "farm/#")
    client = node.connect("client")
    client.publish("farm/a", b"x", retain=True)
    device.say("farm/b", b"y", retain=True)
    settle(group, node)
    client.publish("farm/a", b"", retain=True)
    device.say("farm/b", b"", retain=True)
    settle(group, node)
    assert [(each.payload, each.retain) for each in device.take_messages()] == [(b"x", True), (b"", True)]
    assert len(node.world.broker.retained) == 0


def test_a_node_that_starts_later_takes_over_what_the_group_holds() -> None:
    group = Group()
    Device(group, "device").say("farm/a", b"x", retain=True)
    node = Node(group, "node").open()
    client = node.connect("client")
    client.send(Subscribe(1, [Subscription("farm/#", 0)]))
    assert client.take() == [Suback(1, [0]), Publish("farm/a", b"x", retain=True)]


def test_a_member_that_was_away_does_not_bring_back_old_values() -> None:
    group = Group()
    device = Device(group, "device")
    one, two = Node(group, "one").open(), Node(group, "two").open()
    device.say("farm/a", b"old", retain=True)
    settle(group, one, two)
    device.say("farm/a", b"new", retain=True)
    group.members.remove(two.member)
    settle(group, one)
    group.members.append(two.member)
    watcher = one.connect("watcher", "farm/#")
    watcher.take()
    one.world.broker.duplicates = DuplicateLog()  # as after a restart
    old, new = device.published
    one.gateway.receive_held([old, new], one.world.now)
    one.world.settle()
    assert watcher.take() == []
    assert one.gateway.to_broker.outdated == 2
    kept = one.world.broker.retained.get("farm/a")
    assert kept is not None
    assert kept.payload == b"new"


def test_a_restarted_node_holds_what_it_stored_and_takes_no_copy_back() -> None:
    group = Group()
    device = Device(group, "device", "farm/#")
    node = Node(group, "node", durable=True).open()
    device.say("farm/a", b"x", retain=True)
    settle(group, node)
    group.members.remove(node.member)
    node.world.crash()
    node.open()
    settle(group, node)
    assert node.gateway.to_group == GatewayLedger(published=1, held=1)
    assert node.gateway.to_broker == GatewayLedger(published=1, outdated=1)
    assert node.member.published == []


def test_an_outdated_value_may_still_come_as_a_message() -> None:
    """It is told to a node that has a later one, and the message itself comes by a link that was away."""
    group = Group()
    device = Device(group, "device")
    node = Node(group, "node").open()
    client = node.connect("client", "farm/#")
    device.say("farm/a", b"old", retain=True)
    group.sent.clear()
    device.say("farm/a", b"new", retain=True)
    settle(group, node)
    old = device.published[0]
    node.gateway.receive_held([old], node.world.now)
    assert node.gateway.to_broker == GatewayLedger(published=2, relayed=1, outdated=1)
    node.gateway.receive_messages([old], node.world.now)
    node.world.settle()
    assert client.take_payloads() == [b"new", b"old"]


# What cannot pass


def test_a_payload_that_is_too_large_is_dropped_and_counted() -> None:
    group = Group()
    node = Node(group, "node")
    client = node.connect("client")
    client.publish("farm/a", bytes(MAX_PAYLOAD + 1), retain=True)
    node.open()
    client.send(Publish("farm/b", bytes(MAX_PAYLOAD + 1)), Publish("farm/b", bytes(MAX_PAYLOAD)))
    settle(group, node)
    assert node.gateway.to_group == GatewayLedger(published=3, relayed=1, too_large=2)
    told = [str(event) for event in node.gateway.take_events()]
    assert told == [f"farm/{name} is not passed on by multicast: too large" for name in "ab"]
    assert node.gateway.take_events() == []


def test_a_retained_message_that_the_broker_has_no_room_for_is_refused() -> None:
    group = Group()
    device = Device(group, "device")
    node = Node(group, "node", limits=Limits(retained_bytes=1_000)).open()
    device.say("farm/a", bytes(900), retain=True)
    device.say("farm/b", b"live")
    settle(group, node)
    assert node.gateway.to_broker == GatewayLedger(published=2, relayed=1, refused=1)


@pytest.mark.parametrize("topic", ["", "farm/+", "farm/#", "farm/\0", "farm/\ud800", "a" * 65_536])
def test_a_topic_that_breaks_the_rules_raises_nothing(topic: str) -> None:
    node = Node(Group(), "node").open()
    node.gateway.receive_messages([Message(topic, b"x", id=MessageId("device", 1, 1))], node.world.now)
    assert node.gateway.to_broker == GatewayLedger(published=1, refused=1)


def test_after_close_nothing_flows() -> None:
    group = Group()
    device = Device(group, "device", "farm/#")
    node = Node(group, "node").open()
    client = node.connect("client", "farm/#")
    device.say("farm/a", b"under way")
    group.arrive()
    node.gateway.close(node.world.now)
    device.say("farm/a", b"late")
    client.publish("farm/b", b"x")
    client.take()
    settle(group, node)
    assert node.member.filters == set()
    assert device.take_messages() == []
    assert client.take() == []
    assert node.gateway.to_broker == GatewayLedger(published=1, refused=1)


# As fast as the group can take it


def test_what_is_published_faster_than_the_group_takes_it_waits_in_order() -> None:
    group = Group()
    node = Node(group, "node").open()
    client = node.connect("client")
    client.publish("farm/a", b"0", 1)
    node.member.ready_at = node.world.now + 5
    client.publish("farm/a", b"1", 1)
    client.publish("farm/a", b"at most once", 0)
    client.publish("farm/a", b"2", 1)
    assert payloads(node.member.published) == [b"0", b"at most once"]
    assert node.gateway.deadline == node.world.now + 5
    assert node.gateway.to_group == GatewayLedger(published=4, relayed=2, waiting=2)
    node.gateway.handle_timer(node.world.now + 4)
    assert len(node.member.published) == 2
    node.member.ready_at = node.world.now
    client.publish("farm/a", b"3", 1)
    assert len(node.member.published) == 2
    node.gateway.handle_timer(node.world.now)
    assert payloads(node.member.published)[2:] == [b"1", b"2", b"3"]
    assert node.gateway.to_group == GatewayLedger(published=5, relayed=5)
    assert node.gateway.deadline == float("inf")


def test_what_waits_is_bounded() -> None:
    node = Node(Group(), "node", max_waiting_bytes=10_000).open()
    node.member.ready_at = float("inf")
    client = node.connect("client")
    for number in range(100):
        client.publish("farm/a", b"%d" % number, 1)
    ledger = node.gateway.to_group
    assert 0 < ledger.waiting < 25
    assert ledger.overflowed == 100 - ledger.waiting
    node.member.ready_at = 0.0
    node.gateway.handle_timer(node.world.now)
    node.member.ready_at = float("inf")
    client.publish("farm/a", b"again", 1)
    assert ledger.waiting == 1


def test_at_close_what_waits_leaves() -> None:
    node = Node(Group(), "node").open()
    node.member.ready_at = float("inf")
    node.connect("client").publish("farm/a", b"last words", 1)
    node.gateway.close(node.world.now)
    assert payloads(node.member.published) == [b"last words"]


# What is taken, and when


class Narrow(Observer):
    """A journal that has room when the test says so."""

    def __init__(self) -> None:
        self.room = True
        self.payloads: list[bytes] = []

    def has_room(self, size: int) -> bool:
        return self.room

    def observe(self, batch: Batch, now: float) -> bool:
        if self.room:
            self.payloads += batch.payloads
        return False


def test_what_the_broker_has_to_store_is_taken_when_it_is_stored() -> None:
    group = Group()
    node = Node(group, "node", durable=True).open()
    node.connect("client").subscribe("farm/#", 1)
    node.world.connect("stored", properties={"session_expiry_interval": 100}).subscribe("farm/#", 1)
    node.world.settle()
    node.world.commits = False
    taken: list[bytes] = []
    for payload in (b"1", b"2"):
        message = Message("farm/a", payload, 1, id=MessageId("device", 1, int(payload)))
        node.gateway.receive_messages([message], node.world.now)
        node.gateway.when_taken(partial(taken.append, payload))
        node.world.settle()
    assert taken == []
    node.world.commit()
    node.world.commit()
    assert taken == [b"1", b"2"]


def test_what_a_journal_has_no_room_for_waits_and_is_taken_in_order() -> None:
    node = Node(Group(), "node").open()
    journal = Narrow()
    node.world.broker.observe(journal)
    client = node.connect("client", "farm/#")
    taken: list[int] = []

    def hear(number: int, qos: int) -> None:
        message = Message("farm/a", b"%d" % number, qos, id=MessageId("device", 1, number))
        node.gateway.receive_messages([message], node.world.now)
        node.gateway.when_taken(partial(taken.append, number))
        node.world.settle()

    hear(1, 1)
    journal.room = False
    hear(2, 1)
    hear(3, 0)  # It is passed on without being recorded.
    hear(4, 2)
    assert client.take_payloads() == [b"1", b"3"]
    assert taken == [1]
    ledger = node.gateway.to_broker
    assert (ledger.published, ledger.relayed, ledger.waiting) == (4, 2, 2)
    assert node.gateway.deadline < float("inf")
    node.gateway.handle_timer(node.gateway.deadline)
    assert taken == [1]
    journal.room = True
    hear(5, 1)
    assert taken == [1], "not before those that came first"
    node.gateway.handle_timer(node.gateway.deadline)
    node.world.settle()
    assert client.take_payloads() == [b"2", b"4", b"5"]
    assert journal.payloads == [b"1", b"2", b"4", b"5"]
    assert taken == [1, 2, 3, 4, 5]
    assert node.gateway.to_broker == GatewayLedger(published=5, relayed=5)
    assert node.gateway.deadline == float("inf")


def test_what_waits_for_room_at_the_end_is_passed_on_and_not_taken() -> None:
    node = Node(Group(), "node").open()
    journal = Narrow()
    journal.room = False
    node.world.broker.observe(journal)
    client = node.connect("client", "farm/#")
    taken: list[int] = []
    message = Message("farm/a", b"last", 1, id=MessageId("device", 1, 1))
    node.gateway.receive_messages([message], node.world.now)
    node.gateway.when_taken(partial(taken.append, 1))
    node.gateway.close(node.world.now)
    node.world.settle()
    assert client.take_payloads() == [b"last"]
    assert taken == []


def test_what_was_missed_is_in_the_ledger() -> None:
    node = Node(Group(), "node").open()
    node.gateway.note_missed(3)
    assert node.gateway.to_broker == GatewayLedger(published=3, missed=3)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=30),
    st.booleans(),
    st.integers(1, 2),
)
def test_any_sequence_of_publications_arrives_once_everywhere(
    steps: list[tuple[int, str, bool, bool]], echoes: bool, repeats: int
) -> None:
    """Three gateways and two devices: each message once at each client, and sent once into the group."""
    group = Group(echoes=echoes, repeats=repeats)
    nodes = [Node(group, name).open() for name in ("one", "two", "three")]
    clients = [node.connect("client", "#") for node in nodes]
    devices = [Device(group, name, "farm/#") for name in ("d1", "d2")]
    expected: list[bytes] = []
    for number, (place, topic, retain, lets_arrive) in enumerate(steps):
        payload = b"%d" % number
        expected.append(payload)
        if place < 3:
            clients[place].publish(f"farm/{topic}", payload, retain=retain)
        else:
            devices[place - 3].say(f"farm/{topic}", payload, retain=retain)
        if lets_arrive:
            settle(group, *nodes)
    settle(group, *nodes)
    for client in clients:
        assert sorted(client.take_payloads()) == sorted(expected)
    sent = [message.id for member in group.members for message in member.published]
    assert len(sent) == len(set(sent)) == len(expected)
