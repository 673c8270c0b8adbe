"""Subscriptions that a feature serves: the broker keeps and answers them, and the feature is told."""

from __future__ import annotations

from hedgerow.broker.batch import Batch
from hedgerow.broker.broker import Broker
from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.elsewhere import entry_of
from hedgerow.broker.publishing import deliver_batch
from hedgerow.broker.recipients import Recipient
from hedgerow.broker.session import Session
from hedgerow.broker.source import Source
from hedgerow.mqtt.packets import Puback, Publish, Suback, Subscribe, Subscription, Unsuback, Unsubscribe
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import World


class Clockwork(Source):
    prefix = "$clock/"
    user_property = "clock"

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def refusal(self, session: Session, topic_filter: str) -> int | None:
        return Reason.NOT_AUTHORIZED if topic_filter.endswith("/no") else None

    def subscribed(self, session: Session, record: SubscriptionRecord, is_new: bool) -> None:
        self.told.append(("new" if is_new else "again", record.subscription.topic_filter))

    def unsubscribed(self, session: Session, topic_filter: str) -> None:
        self.told.append(("gone", topic_filter))

    def connected(self, session: Session) -> None:
        self.told.append(("connected", session.client_id))

    def discarded(self, session: Session) -> None:
        self.told.append(("discarded", session.client_id))


class ClockWorld(World):
    def prepare(self, broker: Broker) -> None:
        self.clock = Clockwork()
        broker.serve(self.clock)


def test_a_source_is_told_of_its_subscriptions() -> None:
    world = ClockWorld()
    client = world.connect("client", kept=True)
    client.send(Subscribe(1, [Subscription("$clock/1s/a"), Subscription("$clock/no"), Subscription("a")]))
    assert client.take() == [Suback(1, [0, Reason.NOT_AUTHORIZED, 0])]
    client.send(Subscribe(2, [Subscription("$clock/1s/a", 1), Subscription("$share/g/$clock/1s/a")]))
    assert client.take() == [Suback(2, [1, Reason.TOPIC_FILTER_INVALID])]
    client.lose()
    client = world.connect("client", kept=True)
    client.send(Unsubscribe(3, ["$clock/1s/a", "$clock/no"]))
    assert client.take() == [Unsuback(3, [0, Reason.NO_SUBSCRIPTION_EXISTED])]
    world.broker.discard(client.connection.connected_session())
    assert world.clock.told == [
        ("new", "$clock/1s/a"),
        ("again", "$clock/1s/a"),
        ("connected", "client"),
        ("gone", "$clock/1s/a"),
        ("discarded", "client"),
    ]


def test_a_user_property_names_it() -> None:
    world = ClockWorld()
    client = world.connect("client")
    named = {"user_property": (("clock", "2s"), ("other", "x"))}
    client.send(Subscribe(1, [Subscription("a"), Subscription("$clock/3s/b")], named))  # type: ignore[arg-type]
    client.send(Unsubscribe(2, ["a"], named))  # type: ignore[arg-type]
    assert client.take() == [Suback(1, [0, 0]), Unsuback(2, [0])]
    assert world.clock.told == [("new", "$clock/2s/a"), ("new", "$clock/3s/b"), ("gone", "$clock/2s/a")]


def test_no_client_publishes_there() -> None:
    world = ClockWorld()
    client = world.connect("client")
    client.send(Publish("$clock/1s/a", b"", 1, packet_id=1))
    assert client.take_first(Puback).reason_code == Reason.NOT_AUTHORIZED


def test_what_is_kept_behind_deliveries_is_stored_with_them_or_later() -> None:
    """A crash between two batches: what is kept is never ahead of what was handed out before it."""
    world = ClockWorld(durable=True)
    client = world.connect("client", kept=True)
    client.send(Subscribe(1, [Subscription("$clock/1s/a", 1)]))
    client.take()
    client.lose()
    world.commits = False
    broker, session = world.broker, world.broker.sessions["client"]
    entry = entry_of(session, "$clock/1s/a")
    assert entry is not None
    recipient = Recipient(session, [entry])
    deliver_batch(broker, recipient, Batch("a", None, 1, [b"1", b"2"], 2, "origin", 1, (1, 2)))
    broker.durability.keep_behind("clock", "client", "2")
    broker.durability.has_disk = False  # The log takes nothing.
    world.commit()
    assert ("clock", "client") not in world.store.kept
    assert not world.store.log
    broker.durability.has_disk = True
    world.commit()
    assert world.store.kept["clock", "client"] == "2"
    assert [each.message.payload for each in world.store.log.values()] == [b"1", b"2"]
