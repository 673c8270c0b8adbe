"""A peer that is let in and then writes what it likes, in the right order: nothing raises, all is bounded."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation import codec
from hedgerow.mobility.delegation.addresses import owner_of
from hedgerow.mobility.delegation.fixed import FixedSide
from hedgerow.mobility.delegation.mobile import MobileSide
from hedgerow.mobility.delegation.notifier import Matched
from hedgerow.mobility.delegation.publications import (
    ACKNOWLEDGEMENTS,
    CONTENT,
    FROM_FIXED,
    FROM_MOBILE,
    Body,
    EmptyBody,
    HelloBody,
    PublicationKind,
    StreamHeader,
)
from tests.mobility.delegation.test_codec import BODIES
from tests.mobility.delegation.world import DOMAIN

Item = tuple[PublicationKind, Body, int]
NOBODY = Matched()


def items(kinds: set[PublicationKind]) -> st.SearchStrategy[list[Item]]:
    written = st.sampled_from(sorted(kinds - {PublicationKind.HELLO})).flatmap(
        lambda kind: st.tuples(st.just(kind), BODIES.get(kind, st.just(EmptyBody())), st.integers(0, 4))
    )
    return st.lists(written, max_size=12)


def write(side: MobileSide | FixedSide, sender: str, written: list[Item]) -> None:
    """HELLO, then these as its next ones."""
    header = StreamHeader(9, 0, 1, 0, 0)
    hello = codec.write(DOMAIN, sender, PublicationKind.HELLO, header, HelloBody(0, 0))
    side.receive_publication(sender, hello, 1.0)
    numbers = {True: 0, False: 0}
    for kind, body, acknowledged in written:
        numbers[kind in CONTENT] += kind not in ACKNOWLEDGEMENTS
        header = StreamHeader(9, 1, 1, numbers[kind in CONTENT], acknowledged, acknowledged)
        side.receive_publication(sender, codec.write(DOMAIN, sender, kind, header, body), 1.0)


@settings(max_examples=150)
@given(items(FROM_MOBILE))
def test_a_fixed_broker_and_any_mobile_broker(written: list[Item]) -> None:
    side = FixedSide("f1", DOMAIN, 1, lambda mobile_id: True)
    side.link_up("m1")
    side.link_up("m2")
    for client in ("a@m1", "b@m2", "192.0.2.7:1883"):
        side.client_attached(client, 1.0)
    write(side, "m1", written)
    side.publish(Message("field/1", b"", 1, id=MessageId("f1", 1, 1)), 1.0)
    reached = {name for delivery in side.take_deliveries() for name, _ in delivery.callbacks}
    assert reached <= {"a@m1", "192.0.2.7:1883"}
    assert all(
        owner_of(name) in ("m1", None) for topic in side.mobiles["m1"].topics.values() for name in topic
    )
    assert side.mobiles["m1"].entries == sum(map(len, side.mobiles["m1"].topics.values()))


@settings(max_examples=150)
@given(items(FROM_FIXED), st.booleans())
def test_a_mobile_broker_and_any_fixed_broker(written: list[Item], is_moving: bool) -> None:
    side = MobileSide("m1", DOMAIN, 1)
    side.subscribe("a@m1", "field/#", 1, 1.0)
    side.move_to("f1", 1.0)
    side.link_up("f1")
    side.publish(Message("field/1", b"", 1, id=MessageId("m1", 1, 1)), NOBODY, 1.0)
    if is_moving:
        side.move_to("f2", 1.0)
    write(side, "f1", written)
    side.publish(Message("field/1", b"", 1, id=MessageId("m1", 1, 2)), NOBODY, 1.0)
    reached = {name for delivery in side.take_deliveries() for name, _ in delivery.callbacks}
    assert reached <= {"a@m1"}
    assert list(side.registries.by_filter) == ["field/#"]
