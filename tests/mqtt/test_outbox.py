"""The sender's half of QoS 1 and 2: identifiers, window, order, and what is sent again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hedgerow.message import Message
from hedgerow.mqtt.outbox import MAX_PACKET_ID, Delivery, Outbox, Stage


def delivery(payload: bytes = b"", qos: int = 1) -> Delivery:
    return Delivery(Message("t", payload, qos), qos)


def in_flight(outbox: Outbox, *qualities: int) -> list[Delivery]:
    """Deliveries of these QoS, all sent."""
    taken = []
    for qos in qualities:
        outbox.push(delivery(qos=qos))
        sent = outbox.take()
        assert sent is not None
        taken.append(sent)
    return taken


def test_deliveries_leave_in_order_with_identifiers_of_their_own() -> None:
    outbox = Outbox()
    queued = [delivery(b"a"), delivery(b"b", qos=2), delivery(b"c")]
    for each in queued:
        outbox.push(each)
    assert [outbox.take() for _ in queued] == queued
    assert [each.packet_id for each in queued] == [1, 2, 3]
    assert {each.stage for each in queued} == {Stage.SENT}
    assert outbox.take() is None
    assert len(outbox) == 3


def test_mqtt_3_3_4_9_no_more_in_flight_than_the_receive_maximum() -> None:
    outbox = Outbox(window=2)
    for qos in (1, 2, 1, 1):
        outbox.push(delivery(qos=qos))
    first, second = outbox.take(), outbox.take()
    assert first is not None
    assert second is not None
    assert outbox.take() is None
    assert outbox.acknowledged(first.packet_id) is first
    assert outbox.take() is not None
    outbox.received(second.packet_id)
    assert outbox.take() is None, "a released delivery is still in flight"
    assert outbox.completed(second.packet_id) is second
    assert outbox.take() is not None
    assert len(outbox) == 2


def test_mqtt_2_2_1_3_identifier_in_flight_is_not_used_again() -> None:
    outbox = Outbox()
    first, second, third = in_flight(outbox, 1, 1, 1)
    outbox.acknowledged(second.packet_id)
    outbox.next_packet_id = 1
    (fourth,) = in_flight(outbox, 1)
    assert fourth.packet_id == second.packet_id
    (fifth,) = in_flight(outbox, 1)
    assert fifth.packet_id not in {first.packet_id, third.packet_id, fourth.packet_id}


def test_identifiers_go_round_and_never_are_zero() -> None:
    outbox = Outbox()
    outbox.next_packet_id = MAX_PACKET_ID
    last, first = in_flight(outbox, 1, 1)
    assert (last.packet_id, first.packet_id) == (MAX_PACKET_ID, 1)


def test_all_identifiers_can_be_in_flight_and_the_next_delivery_waits() -> None:
    outbox = Outbox()
    taken = in_flight(outbox, *[1] * MAX_PACKET_ID)
    assert {each.packet_id for each in taken} == set(range(1, MAX_PACKET_ID + 1))
    outbox.push(delivery())
    assert outbox.take() is None
    outbox.acknowledged(777)
    sent = outbox.take()
    assert sent is not None
    assert sent.packet_id == 777


def test_acknowledgement_of_the_wrong_kind_or_of_nothing_completes_nothing() -> None:
    outbox = Outbox()
    at_least_once, exactly_once = in_flight(outbox, 1, 2)
    assert outbox.acknowledged(99) is None
    assert outbox.received(99) is None
    assert outbox.completed(99) is None
    assert outbox.acknowledged(exactly_once.packet_id) is None
    assert outbox.received(at_least_once.packet_id) is None
    assert outbox.completed(at_least_once.packet_id) is None
    assert len(outbox.in_flight) == 2


def test_acknowledgement_given_twice_completes_once() -> None:
    outbox = Outbox()
    (sent,) = in_flight(outbox, 1)
    assert outbox.acknowledged(sent.packet_id) is sent
    assert outbox.acknowledged(sent.packet_id) is None


def test_mqtt_4_3_3_exactly_once_is_released_and_then_complete() -> None:
    outbox = Outbox()
    (sent,) = in_flight(outbox, 2)
    assert outbox.received(sent.packet_id) is sent
    assert sent.stage == Stage.RELEASED
    assert outbox.received(sent.packet_id) is sent, "a PUBREC that comes again is answered again"
    assert outbox.completed(sent.packet_id) is sent
    assert len(outbox) == 0


def test_pubrec_that_refuses_ends_the_delivery() -> None:
    outbox = Outbox()
    (sent,) = in_flight(outbox, 2)
    assert outbox.completed(sent.packet_id) is sent
    assert outbox.resend() == []


def test_mqtt_4_6_0_resent_in_the_order_of_sending_and_released_in_the_order_of_pubrecs() -> None:
    outbox = Outbox()
    a, b, c, d, e = in_flight(outbox, 2, 1, 2, 1, 2)
    outbox.received(e.packet_id)
    outbox.received(a.packet_id)
    assert [each for each in outbox.resend() if each.stage == Stage.SENT] == [b, c, d]
    assert [each for each in outbox.resend() if each.stage == Stage.RELEASED] == [e, a]


def test_oldest_queued_delivery_is_given_up_never_one_in_flight() -> None:
    outbox = Outbox(window=1)
    for payload in (b"sent", b"old", b"new"):
        outbox.push(delivery(payload))
    outbox.take()
    assert outbox.bytes == len("t" + "sent" + "t" + "old" + "t" + "new")  # topics and payloads
    assert outbox.drop_oldest().message.payload == b"old"
    assert outbox.bytes == len("t" + "sent" + "t" + "new")
    assert len(outbox.in_flight) == 1


def test_delivery_started_past_the_queue_is_in_flight() -> None:
    outbox = Outbox()
    sent = delivery(b"x", qos=2)
    outbox.start(sent)
    assert outbox.bytes == len("tx")
    assert outbox.in_flight == {1: sent}
    assert sent.stage == Stage.SENT


operations = st.lists(
    st.tuples(
        st.sampled_from(["push", "take", "acknowledged", "received", "completed", "drop_oldest"]),
        st.integers(1, 6),
    ),
    max_size=60,
)


@given(operations, st.integers(1, 4))
def test_every_delivery_is_completed_once_and_sent_in_order(
    sequence: list[tuple[str, int]], window: int
) -> None:
    outbox = Outbox(window)
    pushed: list[Delivery] = []
    taken: list[Delivery] = []
    over: list[Delivery | None] = []
    for operation, number in sequence:
        if operation == "push":
            pushed.append(delivery(bytes(number), qos=1 + number % 2))
            outbox.push(pushed[-1])
        elif operation == "take":
            sent = outbox.take()
            taken += [sent] if sent is not None else []
        elif operation == "drop_oldest":
            if outbox.queue:
                over.append(outbox.drop_oldest())
        else:
            done = getattr(outbox, operation)(number)
            over += [done] if done is not None and operation != "received" else []
        assert len(outbox.in_flight) <= window
        assert outbox.bytes == sum(each.message.size for each in (*outbox.queue, *outbox.in_flight.values()))
        assert all(packet_id == each.packet_id for packet_id, each in outbox.in_flight.items())
    positions = [pushed.index(each) for each in taken]
    assert positions == sorted(positions)
    assert len(over) == len({id(each) for each in over})
    assert {id(each) for each in pushed} == {
        id(each) for each in (*over, *outbox.in_flight.values(), *outbox.queue)
    }
