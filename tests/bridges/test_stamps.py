"""Stamps: carriers at a foreign broker agree on one id for each message, whoever comes and goes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.bridges import carriers, stamps
from hedgerow.bridges.attendance import CARRIER_TOPIC, IDENTITY_TOPIC, PREFIX
from hedgerow.bridges.stamp_codec import Presence, encode_presence, encode_stamps, fingerprint
from hedgerow.bridges.stamp_tables import BOUNDS, StampBounds
from hedgerow.bridges.stamps import ANSWER_TOPIC, STAMPS_TOPIC, Stamps, is_control
from hedgerow.message import Message, MessageId
from tests.bridges.foreign_broker import Foreign, Node

IDENTITY = "0123456789abcdef01234567"


def foreign(seed: int = 1, bounds: StampBounds = BOUNDS, **options: float) -> Foreign:
    return Foreign(Random(seed), bounds=bounds, **options)  # type: ignore[arg-type]


def ids(node: Node) -> list[MessageId]:
    return [message_id for _, message_id in node.identified]


def numbers(node: Node) -> list[int]:
    return [born.number for born, _ in node.identified]


def said(broker: Foreign, topic: str) -> list[Message]:
    return [each for each in broker.published if each.topic == topic]


# Alone


def test_a_carrier_alone_gives_ids_itself_and_publishes_no_stamps() -> None:
    broker = foreign()
    [one] = broker.join("one")
    assert one.stamps.attendance.is_alone
    for _ in range(3):
        broker.bear("a", b"x")
    broker.run(0.1)
    first, *others = ids(one)
    assert (first.origin, first.sequence) == (one.stamps.attendance.identity, 1)
    assert [each.sequence for each in others] == [2, 3]
    assert one.stamps.next_run(3, broker.now) == (first.origin, first.epoch, range(4, 7))
    assert one.stamps.next_run(1, broker.now) == (first.origin, first.epoch, range(7, 8))
    assert said(broker, STAMPS_TOPIC) == []
    assert one.stamps.counters.alone == 7


def test_a_carrier_does_not_give_ids_before_it_knows_who_is_there() -> None:
    broker = foreign()
    one = broker.add("one", "#")
    one.connect()
    assert one.stamps.next_run(1, broker.now) is None
    broker.run(0.12)
    broker.bear("a", b"x")
    broker.run(0.05)
    assert one.stamps.held_count == 1
    broker.run(0.5)
    assert numbers(one) == [0]


# Identity


def test_the_first_carrier_names_the_broker_and_all_follow() -> None:
    broker = foreign()
    one, two = broker.join("one", "two")
    [name] = said(broker, IDENTITY_TOPIC)
    assert name.retain
    assert one.stamps.attendance.identity == two.stamps.attendance.identity == name.payload.decode()


def test_a_carrier_that_comes_back_to_a_broker_that_forgot_names_it_as_before() -> None:
    broker = foreign()
    one, two = broker.join("one", "two")
    identity = one.stamps.attendance.identity
    one.cut()
    two.cut()
    broker.retained.clear()
    two.connect()
    broker.run(1.0)
    assert said(broker, IDENTITY_TOPIC)[-1].payload.decode() == two.stamps.attendance.identity == identity


def test_the_last_identity_holds() -> None:
    broker = foreign()
    one, two = broker.join("one", "two")
    broker.publish(Message(IDENTITY_TOPIC, IDENTITY.encode(), retain=True), None)
    broker.run(0.1)
    broker.bear("a", b"x")
    broker.run(0.5)
    assert ids(one) == ids(two)
    assert ids(one)[0].origin == IDENTITY


# Several


def test_all_give_a_message_the_id_that_the_leader_gave() -> None:
    broker = foreign()
    nodes = broker.join("c", "a", "b")
    for number in range(20):
        broker.bear(f"t/{number % 3}", b"alike" if number % 2 else b"%d" % number)
        broker.run(0.01)
    broker.run(0.5)
    first, *others = nodes
    expected = {born.number: message_id for born, message_id in first.identified}
    assert len(set(expected.values())) == 20
    for node in others:
        assert {born.number: message_id for born, message_id in node.identified} == expected
        assert node.stamps.counters.matched == 20
    assert first.stamps.counters.stamped == 20  # It was there first, whatever its id.


def test_what_comes_in_one_turn_is_stamped_in_one_publication() -> None:
    broker = foreign()
    one, _ = broker.join("one", "two")
    for number in range(50):
        one.stamps.receive_message(Message("a", b"%d" % number), None, broker.now)
    [publication] = one.stamps.take_publications()
    assert publication.topic == STAMPS_TOPIC
    assert len(publication.payload) < 50 * 8 + 100


def test_messages_of_one_topic_keep_their_order_while_one_waits() -> None:
    broker = foreign()
    one, two = broker.join("one", "two")
    two.stamps.receive_message(Message("a", b"1"), broker.bear("x", b""), broker.now)
    second, other = broker.bear("y", b""), broker.bear("z", b"")
    print_ = fingerprint(Message("a", b"2"))
    [payload] = encode_stamps(7, [(MessageId("o", 1, 2), print_)], goes_before=True)
    two.stamps.receive_control(STAMPS_TOPIC, payload, broker.now)
    two.stamps.receive_message(Message("a", b"2"), second, broker.now)
    [payload] = encode_stamps(7, [(MessageId("o", 1, 3), fingerprint(Message("b", b"3")))], goes_before=True)
    two.stamps.receive_control(STAMPS_TOPIC, payload, broker.now)
    two.stamps.receive_message(Message("b", b"3"), other, broker.now)
    assert [message.payload for message, _ in two.stamps.take_identified()] == [b"3"]
    [payload] = encode_stamps(7, [(MessageId("o", 1, 1), fingerprint(Message("a", b"1")))])
    two.stamps.receive_control(STAMPS_TOPIC, payload, broker.now)
    assert [message.payload for message, _ in two.stamps.take_identified()] == [b"1", b"2"]
    del one


def test_a_carrier_that_does_not_get_a_topic_does_not_lead_it() -> None:
    broker = foreign()
    for name, *filters in (("out only",), ("some", "a/#"), ("all", "#"), ("more", "#")):
        broker.add(name, *filters).connect()
        broker.run(1.0)
    broker.bear("a/b", b"x")
    broker.bear("b", b"y")
    broker.run(0.3)
    nodes = broker.nodes
    assert nodes["some"].stamps.counters.stamped == 1
    assert nodes["all"].stamps.counters.stamped == 1
    by_number = {born.number: message_id for born, message_id in nodes["all"].identified}
    assert by_number == {born.number: message_id for born, message_id in nodes["more"].identified}
    assert ids(nodes["some"]) == [by_number[0]]
    assert nodes["out only"].identified == []


def test_a_newcomer_does_not_displace_the_leader() -> None:
    broker = foreign()
    broker.join("b")
    broker.join("a")
    broker.bear("t", b"x")
    broker.run(0.3)
    assert broker.nodes["b"].stamps.counters.stamped == 1


# Death


@pytest.mark.parametrize(("has_will", "within_s"), [(True, 0.3), (False, 1.8)])
def test_when_the_leader_dies_the_next_stamps_what_it_holds(has_will: bool, within_s: float) -> None:
    broker = foreign()
    one, two, three = broker.join("one", "two", "three")
    one.cut(has_will, knows=False)
    for number in range(5):
        broker.bear("a", b"%d" % number)
    broker.run(within_s)
    assert numbers(two) == numbers(three) == [0, 1, 2, 3, 4]
    assert ids(two) == ids(three)
    assert two.stamps.counters.stamped == 5


def test_what_the_leader_did_not_get_is_stamped_by_the_next() -> None:
    """As when the broker dropped it for the leader alone, at QoS 0."""
    broker = foreign()
    one, two, three = broker.join("one", "two", "three")
    one.subscriptions.remove("#")
    broker.bear("a", b"x", 0)
    broker.run(1.0)
    assert two.identified == three.identified == []
    broker.run(1.0)
    assert numbers(two) == numbers(three) == [0]
    assert ids(two) == ids(three)
    assert (two.stamps.counters.timed_out, three.stamps.counters.timed_out) == (1, 0)


def test_when_all_others_die_the_last_is_alone() -> None:
    broker = foreign()
    one, two = broker.join("one", "two")
    one.cut(knows=False)
    broker.run(2.0)
    assert two.stamps.attendance.is_alone
    assert two.stamps.next_run(1, broker.now) is not None


def test_when_the_connection_ends_what_is_held_at_qos_1_leaves() -> None:
    broker = foreign()
    _, two = broker.join("one", "two")
    two.stamps.receive_message(Message("a", b"0", 0), None, broker.now)
    two.stamps.receive_message(Message("a", b"1", 1), None, broker.now)
    two.stamps.disconnected()
    [(message, _)] = two.stamps.take_identified()
    assert message.payload == b"1"
    assert message.id is not None
    assert two.stamps.counters.dropped == 1
    assert two.stamps.held_count == 0
    assert two.stamps.deadline == float("inf")


def test_a_leader_that_stood_still_does_not_stamp_what_the_next_has_stamped() -> None:
    broker = foreign()
    one, two, three = broker.join("one", "two", "three")
    one.freeze()
    broker.run(2.0)
    for number in range(5):
        broker.bear("a", b"%d" % number)
    broker.run(1.0)
    assert ids(two) == ids(three)
    one.thaw()
    broker.bear("a", b"later")
    broker.run(1.0)
    assert ids(one) == ids(two) == ids(three)
    assert len(ids(one)) == 6


def test_a_newcomer_that_is_back_before_it_is_missed_is_answered() -> None:
    broker = foreign()
    one, two = broker.join("one")[0], broker.add("two", "#")
    two.connect()
    broker.run(0.2)
    two.cut()
    two.connect()
    broker.run(0.4)
    assert not two.stamps.attendance.is_alone
    broker.bear("a", b"x")
    broker.run(0.2)
    assert ids(one) == ids(two)


# Last values


def test_a_carrier_that_comes_back_gives_a_last_value_the_id_that_it_had() -> None:
    broker = foreign()
    [one] = broker.join("one")
    broker.bear("a", b"kept", retain=True)
    broker.bear("b", b"old", retain=True)
    broker.run(0.1)
    one.cut()
    broker.bear("b", b"new", retain=True)
    one.connect()
    broker.run(1.0)
    kept, old, *again = ids(one)
    assert again[0] == kept
    assert again[1] not in (kept, old)
    broker.bear("a", b"kept", retain=True)  # a message, though it says the same
    broker.run(0.3)
    assert ids(one)[-1] not in (kept, old, *again)


def test_a_newcomer_is_told_the_ids_of_last_values() -> None:
    broker = foreign()
    [one] = broker.join("one")
    broker.bear("a", b"1", retain=True)
    broker.bear("b", b"2", retain=True)
    broker.run(0.3)
    [two, _] = broker.join("two", "three")
    assert ids(two) == ids(one) == ids(broker.nodes["three"])
    assert two.stamps.counters.recalled == 2
    broker.bear("a", b"1", retain=True)
    broker.run(0.3)
    assert ids(one)[-1] == ids(two)[-1] == ids(broker.nodes["three"])[-1]
    assert len(set(ids(one))) == 3


# A broker that carries no ids


@pytest.mark.parametrize("echoes", [False, True])
def test_without_user_properties_a_message_keeps_its_id_at_all_others(echoes: bool) -> None:
    broker = foreign(carries_ids=False, echoes=echoes)
    one, two, three = broker.join("one", "two", "three")
    sent = [MessageId("node", 1, number) for number in range(1, 11)]
    for sender, message_id in zip([one, two, three, two, one] * 2, sent, strict=True):
        sender.send(
            Message("a", b"alike" if message_id.sequence % 2 else b"%d" % message_id.sequence, id=message_id)
        )
        broker.run(0.15)
    broker.bear("a", b"alike")
    broker.run(1.0)
    for node in (one, two, three):
        by_number = {born.number: message_id for born, message_id in node.identified}
        assert by_number.pop(10).origin == one.stamps.attendance.identity
        assert all(sent[number] == message_id for number, message_id in by_number.items())
        heard = 10 if echoes else 10 - sum(each is node for each in [one, two, three, two, one] * 2)
        assert len(by_number) == heard
    assert len({ids(each)[-1] for each in (one, two, three)}) == 1


def test_alone_at_such_a_broker_its_own_message_that_comes_back_is_known() -> None:
    broker = foreign(carries_ids=False)
    [one] = broker.join("one")
    one.send(Message("a", b"x", id=MessageId("node", 1, 1)))
    broker.run(0.3)
    broker.bear("a", b"x")
    broker.run(0.3)
    assert [each.origin for each in ids(one)] == ["node", one.stamps.attendance.identity]
    assert said(broker, STAMPS_TOPIC) == []
    assert one.stamps.next_run(1, broker.now) is None


def test_where_it_does_not_come_back_the_short_way_is_open() -> None:
    broker = foreign(carries_ids=False, echoes=False)
    [one] = broker.join("one")
    one.send(Message("a", b"x", id=MessageId("node", 1, 1)))
    broker.bear("a", b"x")
    broker.run(0.3)
    assert [each.origin for each in ids(one)] == [one.stamps.attendance.identity]
    assert one.stamps.next_run(1, broker.now) is not None


def test_a_newcomer_gets_the_stamps_of_what_crossed_its_first_word() -> None:
    broker = foreign(carries_ids=False, echoes=False)
    [one] = broker.join("one")
    two = broker.add("two", "#")
    broker.max_delay_s = 0.1
    two.connect()
    for number in range(1, 40):
        one.send(Message("a", b"%d" % number, id=MessageId("node", 1, number)))
        broker.run(0.01)
    broker.run(2.0)
    assert len(two.identified) > 0
    for born, message_id in two.identified:
        assert born.message.id == message_id


def test_a_stamp_whose_message_is_yet_to_come_keeps_the_short_way_shut() -> None:
    """Its message may wait at the broker for room in flight, while who stamped it has left."""
    broker = foreign()
    [one] = broker.join("one")
    older = Stamps("older", 5, False, IDENTITY)
    older.connected(0.0)
    older.note_sent(Message("a", b"x", id=MessageId("node", 1, 1)), 0.0)
    said_by_it = [*older.take_publications(), Message(CARRIER_TOPIC + "older", b"")]
    for each in said_by_it:
        one.stamps.receive_control(each.topic, each.payload, broker.now)
    assert one.stamps.attendance.is_alone
    assert one.stamps.next_run(1, broker.now) is None
    one.stamps.receive_message(Message("a", b"x", 1), None, broker.now)
    [(message, _)] = one.stamps.take_identified()
    assert message.id == MessageId("node", 1, 1)
    broker.run(2.0)
    assert one.stamps.next_run(1, broker.now) is not None


def test_a_carrier_with_user_properties_stamps_for_one_without() -> None:
    broker = foreign()
    [one] = broker.join("one")
    assert not one.stamps.wants_sent
    older = Stamps("older", 5, False, IDENTITY)
    older.connected(0.0)
    for each in older.take_publications():
        one.stamps.receive_control(each.topic, each.payload, broker.now)
    assert one.stamps.wants_sent
    one.stamps.note_sent(Message("a", b"x", id=MessageId("node", 1, 1)), broker.now)
    [publication] = [each for each in one.stamps.take_publications() if each.topic == STAMPS_TOPIC]
    older.receive_control(STAMPS_TOPIC, publication.payload, 0.0)
    older.receive_message(Message("a", b"x"), None, 0.0)
    [(message, _)] = older.take_identified()
    assert message.id == MessageId("node", 1, 1)


# Whatever happens


def agree(broker: Foreign) -> None:
    """One id for each message, at all who were there when it was born and still are; each message once.

    All payloads differ: of messages that are alike a newcomer may take one for another that it missed.
    """
    givers: dict[MessageId, int] = {}
    stable = [node for node in broker.nodes.values() if node.connection]
    for born in broker.born:
        expected = [node for node in stable if node.connection in born.subscribers]
        given_ids = []
        for node in expected:
            own = [message_id for each, message_id in node.identified if each is born]
            assert len(own) == 1, (node.name, born, own)
            given_ids += own
        assert len(set(given_ids)) <= 1, (born, given_ids)
        for message_id in set(given_ids):
            # Who dies right after it sent something takes its word with it to a newcomer.
            if born.sender in {node.connection for node in stable} - {""}:
                assert message_id == born.message.id
            assert givers.setdefault(message_id, born.number) == born.number
    for node in stable:
        for topic in {born.message.topic for born in broker.born}:
            order = [each.number for each, _ in node.identified if each.message.topic == topic]
            assert order == sorted(order)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_all_who_stay_agree_whoever_comes_and_goes(seed: int, carries_ids: bool, echoes: bool) -> None:
    random = Random(seed)
    broker = Foreign(random, carries_ids=carries_ids, echoes=echoes or carries_ids)
    filters = [("#",), ("#",), ("a/#", "b"), ("a/#",), ()]
    nodes = [broker.add(f"n{random.random()}", *random.choice(filters)) for _ in range(5)]
    sequence = 0
    for _ in range(150):
        node = random.choice(nodes)
        action = random.random()
        if action < 0.06 and not node.connection:
            node.connect()
        elif action < 0.08 and node.connection:
            node.cut(has_will=random.random() < 0.5)
        elif action < 0.3 and node.connection and not carries_ids:
            sequence += 1
            message = Message(random.choice(["a/1", "b"]), b"sent %d" % sequence, 1)
            message.id = MessageId("node", 1, sequence)
            node.send(message)
        else:
            broker.bear(random.choice(["a/1", "a/2", "b", "c"]), b"born %d" % len(broker.born))
        broker.run(random.choice([0.0, 0.001, 0.03, 0.2]))
    broker.run(12.0)
    agree(broker)
    assert all(not node.stamps.held_count for node in nodes)


# Hostile publications


NOISE = st.one_of(
    st.binary(max_size=60),
    st.binary(max_size=40).map(lambda data: b"\x01" + data),
    st.binary(max_size=20).map(lambda data: encode_presence(Presence(5, 1, True, ("#",))) + data),
)
CONTROL_TOPICS = [
    PREFIX + each
    for each in ("identity", "carrier/x", "carrier/two", "stamps", "question/x", "answer/two", "", "else")
]


@given(st.lists(st.tuples(st.sampled_from(CONTROL_TOPICS), NOISE), max_size=30))
@settings(deadline=None)
def test_noise_raises_nothing_and_loses_nothing(noise: list[tuple[str, bytes]]) -> None:
    broker = foreign()
    one, two = broker.join("one", "two")
    for topic, payload in noise:
        broker.publish(Message(topic, payload), None)
        broker.bear("a", payload)
    broker.run(10.0)
    assert numbers(one) == numbers(two) == list(range(len(noise)))


def test_what_is_not_understood_is_counted() -> None:
    broker = foreign()
    [one] = broker.join("one")
    for topic in CONTROL_TOPICS:
        if "answer" not in topic:
            one.stamps.receive_control(topic, b"\x07garbage", broker.now)
    assert one.stamps.counters.malformed == len(CONTROL_TOPICS) - 1
    assert one.stamps.attendance.is_alone


def test_a_flood_of_carriers_is_bounded_and_not_answered_each_time() -> None:
    broker = foreign()
    [one] = broker.join("one")
    before = len(said(broker, CARRIER_TOPIC + "one"))
    payload = encode_presence(Presence(5, 0, True, ("#",)))
    for number in range(1_000):
        broker.publish(Message(f"{CARRIER_TOPIC}{number}", payload), None)
    broker.run(0.2)
    assert one.stamps.attendance.refused == 1_000 - carriers.MAX_CARRIERS
    assert len(said(broker, CARRIER_TOPIC + "one")) - before <= 5
    broker.run(3.0)
    assert one.stamps.attendance.is_alone


def test_one_with_our_own_id_is_refused() -> None:
    broker = foreign()
    [one] = broker.join("one")
    broker.publish(Message(CARRIER_TOPIC + "one", encode_presence(Presence(5, 1, True, ("#",)))), None)
    broker.publish(one.stamps.attendance.will, None)
    broker.run(0.1)
    assert one.stamps.attendance.refused == 1
    assert one.stamps.attendance.is_alone


def test_stamps_that_match_nothing_are_bounded() -> None:
    broker = foreign(bounds=StampBounds(unmatched=100))
    [one] = broker.join("one")
    for number in range(10):
        stamps_ = [(MessageId("x", 1, 100 * number + n), b"%08d" % n) for n in range(100)]
        [payload] = encode_stamps(5, stamps_)
        one.stamps.receive_control(STAMPS_TOPIC, payload, broker.now)
    assert one.stamps.counters.unmatched == 900
    assert one.stamps.unmatched_count == 100
    broker.run(2.0)
    assert one.stamps.counters.unmatched == 1_000
    assert one.stamps.unmatched_count == 0


@pytest.mark.parametrize("bounds", [StampBounds(held=10), StampBounds(held_bytes=10_000)])
def test_what_is_held_is_bounded_and_still_leaves_in_order(bounds: StampBounds) -> None:
    broker = foreign(bounds=bounds)
    one, two = broker.join("one", "two")
    one.cut(knows=False)
    for number in range(50):
        broker.bear("a", b"%d" % number)
    broker.run(0.3)
    assert two.stamps.held_count <= 12
    assert two.stamps.counters.overflowed >= 38
    broker.run(3.0)
    assert numbers(two) == list(range(50))


def test_last_values_are_bounded() -> None:
    broker = foreign(bounds=StampBounds(values=10))
    [one] = broker.join("one")
    for number in range(50):
        broker.bear(f"a/{number}", b"x", retain=True)
    broker.run(0.3)
    assert one.stamps.value_count == 10


def test_a_silent_leader_delays_and_no_more() -> None:
    """Somebody says that it leads everything, and stamps nothing."""
    broker = foreign()
    one, two = broker.join("one", "two")
    payload = encode_presence(Presence(5, 1, True, ("#",)))
    for _ in range(20):
        broker.publish(Message(CARRIER_TOPIC + "a", payload), None)
        broker.bear("t", b"x")
        broker.run(0.3)
    broker.run(5.0)
    assert ids(one) == ids(two)
    assert numbers(one) == list(range(20))


def test_control_topics_are_known() -> None:
    assert is_control(STAMPS_TOPIC)
    assert not is_control("hedgerow/bridges")
    with pytest.raises(ValueError, match="24 hex digits"):
        Stamps("one", 1, True, "short")
    assert stamps.CONTROL_FILTER == "hedgerow/bridge/#"


def test_carriers_that_only_come_and_go_are_not_remembered() -> None:
    stamps = Stamps("me", 5, False, "0" * 24)
    stamps.connected(0.0)
    stamps.take_publications()
    for number in range(1_000):
        topic = f"{CARRIER_TOPIC}{number}"
        stamps.receive_control(topic, encode_presence(Presence(9, 0, False, ("#",))), 0.01)
        stamps.receive_control(topic, b"", 0.01)
    stamps.note_sent(Message("t", b"x", id=MessageId("o", 1, 1)), 0.01)
    stamps.handle_timer(0.1)
    topics = [each.topic for each in stamps.take_publications()]
    assert not [each for each in topics if each.startswith(ANSWER_TOPIC)]
