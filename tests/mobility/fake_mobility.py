"""What mobility's roles ask, which a test sets the answers for and which remembers what it was told."""

from __future__ import annotations

from hedgerow.broker.broker import Broker
from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.session import Channel, Session
from hedgerow.message import Message
from hedgerow.mobility.roles import MobileBrokerRole, MobileClientRole
from tests.broker.harness import World


class FakeMobility:
    def __init__(self) -> None:
        self.refuses: str | None = None
        self.expected: set[str] = set()
        self.kept: set[str] = set()
        self.reserved: set[str] = set()
        self.guests: set[str] = set()
        self.supporter = ""
        self.is_extended = False
        self.domain = "d"
        self.told: list[tuple[object, ...]] = []

    def install(self, broker: Broker) -> None:
        broker.register(MobileBrokerRole(broker, self))
        broker.replace_client_role(MobileClientRole(broker, self))
        broker.reserve(self.reserves)

    def take(self) -> list[tuple[object, ...]]:
        told, self.told = self.told, []
        return told

    def refusal(self, broker_id: str, username: str | None) -> str | None:
        self.told.append(("asked", broker_id, username))
        return self.refuses

    def accepted(self, connection: Channel, address: str, is_extended: bool) -> None:
        self.is_extended = is_extended
        self.told.append(("accepted", connection.connected_session().client_id, address))

    def ended(self, connection: Channel) -> None:
        self.told.append(("ended", connection.connected_session().client_id))

    def receive(self, connection: Channel, publication: Message) -> None:
        who = connection.connected_session().client_id
        self.told.append(("received", who, publication.topic, publication.payload))

    def reserves(self, topic: str) -> bool:
        return topic in self.reserved

    def expects(self, client_id: str, username: str | None) -> bool:
        return client_id in self.expected

    def connected(self, connection: Channel) -> None:
        session = connection.connected_session()
        assert session.connection is connection
        self.told.append(("connected", session.client_id))

    def arriving(self, client_id: str, is_clean: bool) -> None:
        pass

    def disconnected(self, connection: Channel) -> None:
        pass

    def keeps(self, session: Session) -> bool:
        return session.client_id in self.kept

    def discarded(self, session: Session) -> None:
        self.told.append(("discarded", session.client_id, tuple(session.subscriptions or ())))

    def subscribes(self, session: Session, record: SubscriptionRecord) -> bool:
        subscription = record.subscription
        if session.client_id not in self.guests:
            return False
        self.told.append(("subscribed", session.client_id, subscription.topic_filter, subscription.qos))
        return True

    def unsubscribes(self, session: Session, topic_filter: str) -> bool:
        if session.client_id not in self.guests:
            return False
        self.told.append(("unsubscribed", session.client_id, topic_filter))
        return True


class MobileWorld(World):
    """A broker that mobility has its roles at, which speaks the extension."""

    def prepare(self, broker: Broker) -> None:
        self.mobility = FakeMobility()
        self.mobility.install(broker)
