"""A fixed broker: it matches what mobile brokers have delegated, and serves their clients that come here.

Mobile brokers connect as sessions of this broker (`MobileSupport`), and what they write on their links is for
the `FixedSide` alone. What clients of this broker publish comes to it by a port, which is subscribed to what
mobile brokers have registered and nothing else; what mobile brokers publish goes out by the same port.

A *guest* is a client of a mobile broker that was sent here. Its session is this broker's, its subscriptions
are not: the mobile broker owns them, and is told when a guest changes them here (`guests.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from urllib.parse import quote

from hedgerow.broker.backlog import Backlog
from hedgerow.broker.broker import Broker
from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.owners import owner_of
from hedgerow.broker.port import Port
from hedgerow.broker.session import Channel, Session
from hedgerow.message import Message
from hedgerow.mobility.coordination import first_epoch, is_coordination
from hedgerow.mobility.delegation import codec
from hedgerow.mobility.delegation.events import (
    CalledBack,
    ClientMoved,
    DelegationEvent,
    Forgotten,
    MissedWhileAway,
    Notification,
    Reborn,
    Registered,
    RenewTopics,
    RoamingTold,
    Unregistered,
)
from hedgerow.mobility.delegation.fixed import FixedSide
from hedgerow.mobility.delegation.publications import GuestSubscription
from hedgerow.mobility.events import HomeNotProved, MobileLinked, NodeEvent
from hedgerow.mobility.guests import GuestSessions
from hedgerow.mobility.held_sessions import HeldSessions
from hedgerow.mobility.kept_for_mobiles import KeptForMobiles
from hedgerow.mobility.plain import is_plain
from hedgerow.mobility.renewals import is_name_unverified, renew
from hedgerow.mobility.roles import MOBILE_PREFIX, MobileBrokerRole, MobileClientRole, register_own_roles
from hedgerow.mobility.sessions import end_session, may_have_come
from hedgerow.mqtt.extension import Renewal, parse_address
from hedgerow.mqtt.packets import Packet, Subscription
from hedgerow.mqtt.reasons import Reason
from hedgerow.rates import is_loopback
from hedgerow.topics import split_shared

OFFER_WORK = 10  # for each retained message that is looked at: see `Broker.begin_turn`
LOOKED_AT_PER_WORK = 32  # characters of its topic
RENEWAL_WORK = 20  # for each client that is told to go elsewhere
GUEST_RIGHT = "$hedgerow/guest/"  # and the user whose clients a mobile broker may bring, percent-encoded


class FixedNode:
    """`allow`: the ids of those mobile brokers that may delegate here; None: whom the ACL lets. `homes`:
    HOST:PORT where clients may be sent home, beside the host that a mobile broker's link comes from."""

    def __init__(
        self,
        broker: Broker,
        domain: str,
        allow: frozenset[str] | None,
        takeover_after_s: float,
        homes: frozenset[str] = frozenset(),
    ) -> None:
        self.broker = broker
        self.domain = domain
        self._allow = allow
        self._homes = homes
        self.machine = FixedSide(
            broker.node_id,
            domain,
            first_epoch(broker),
            self._allows,
            takeover_after_s=takeover_after_s,
            objection_to_guest=self._objection_to_guest,
            may_bring=lambda mobile_id, username: self.may_bring(mobile_id, username or None),
            may_read=self.may_read,
            may_write=self._may_write,
            is_same=self._is_same_client,
        )
        register_own_roles(broker)
        self._kept = KeptForMobiles(broker, self.machine)
        self.guests = GuestSessions(broker, self.machine, self._kept)
        self.held = HeldSessions(self)
        self.has_work = True
        self._port = Port(broker, "mobile brokers", self.published, "mobile")
        self._filters: Counter[str] = Counter()
        self._offers: dict[str, dict[str, Iterator[None]]] = {}  # by mobile broker and topic filter
        self._links: dict[str, Channel] = {}
        self._extended: set[Channel] = set()  # of those, the ones that read PUBCALLBACK
        self._addresses: dict[str, str] = {}  # where the clients of a mobile broker reach it
        self._users: dict[str, str | None] = {}  # as whom a mobile broker logged in last
        self._homeward: list[str] = []  # guests who subscribed to what only their mobile broker can match
        self._events: list[DelegationEvent | NodeEvent] = []
        self.supporter = ""  # None supports a fixed broker.
        broker.register(MobileBrokerRole(broker, self))
        broker.replace_client_role(MobileClientRole(broker, self))
        broker.reserve(self.reserves)

    def _allows(self, mobile_id: str) -> bool:
        return self._allow is None or mobile_id in self._allow

    def _objection_to_guest(self, mobile_id: str, client_id: str, username: str | None) -> str | None:
        """A mobile broker that names a client has not proved that the client is its own. It must not get hold
        of a session that is kept here, nor of the messages and the password of a user whom nobody gave into
        its care."""
        session = self.broker.sessions.get(client_id)
        if session is not None and self.guests.callback_of(session) is None:
            return f"another {client_id!r} is here"
        if not self.may_bring(mobile_id, username):
            return f"no right to bring clients of {username!r}: {guest_right(username or '')}"
        return None

    def may_bring(self, mobile_id: str, username: str | None) -> bool:
        """Clients without a user have no more than anyone may have who connects under their id."""
        own = self._users.get(mobile_id)
        if username is None or username == own:
            return True
        access = self.broker.access
        right = guest_right(username)
        # Without access rules nothing says so, and that all topics are everyone's does not.
        return not access.is_open and access.may_write(own, MOBILE_PREFIX + mobile_id, right)

    def may_read(self, mobile_id: str, topic: str) -> bool:
        """Who may delegate has no more rights than other users: its clients get what it may have."""
        access = self.broker.access
        if access.is_open or mobile_id not in self._users:
            return True  # Of one that has not come back since this broker started, all is kept.
        return access.may_read(self._users[mobile_id], MOBILE_PREFIX + mobile_id, topic)

    def _is_same_client(self, client_id: str, first: str, second: str) -> bool:
        return self.held.is_at_both(client_id, first, second)

    def _may_write(self, mobile_id: str, topic: str) -> bool:
        access, user = self.broker.access, self._users.get(mobile_id)
        may_write = access.is_open or access.may_write(user, MOBILE_PREFIX + mobile_id, topic)
        return may_write and not self.reserves(topic)

    def may_carry(self, mobile_id: str, topic: str) -> bool:
        """As something that waited for a client there: from here, or from one of its clients to another."""
        if topic.startswith("$") or self.reserves(topic):
            return False
        return self.may_read(mobile_id, topic) or self._may_write(mobile_id, topic)

    def reserves(self, topic: str) -> bool:
        return is_coordination(topic, self.domain, (self.broker.node_id, *self.machine.mobiles))

    # Links of mobile brokers (`MobileSupport`)

    def refusal(self, broker_id: str, username: str | None) -> str | None:
        topic = f"{self.domain}/{broker_id}/delegate"
        access = self.broker.access
        if broker_id == self.broker.node_id:
            return "the id of this broker itself"
        if access.is_open and self._users.get(broker_id) not in (None, username):
            # Where there are rules they say whose it is. Its events wait here, and its clients may come.
            return f"the mobile broker {broker_id!r} belongs to another user"
        may_write = access.may_write(username, MOBILE_PREFIX + broker_id, topic)
        if not self._allows(broker_id) or not may_write:
            self.machine.refuse(broker_id, topic, "it may not delegate here")
            self.has_work = True
            return f"no right to delegate: {topic}"
        return None

    def accepted(self, connection: Channel, address: str, is_extended: bool) -> None:
        mobile_id = _mobile_of(connection)
        if address and address not in self._homes and not _is_at(address, connection.address):
            # Anyone could be meant: this broker's guests would all connect there, at its word.
            self._events.append(HomeNotProved(mobile_id, address, connection.address))
            address = ""
        self._links[mobile_id] = connection
        if is_extended:
            self._extended.add(connection)
        self._addresses[mobile_id] = address
        self._users[mobile_id] = connection.connected_session().username
        whose = owner_of(self._users[mobile_id], connection.address)
        self.machine.link_up(mobile_id, connection.maximum_packet_size, whose)
        if mobile_id not in self.machine.mobiles:
            connection.disconnect(Reason.QUOTA_EXCEEDED, "too many mobile brokers, of this owner or in all")
            return
        self._events.append(MobileLinked(mobile_id, address))
        self.has_work = True

    def ended(self, connection: Channel) -> None:
        mobile_id = _mobile_of(connection)
        if self._links.get(mobile_id) is connection:
            del self._links[mobile_id]
            self._extended.discard(connection)
            self.machine.link_down(mobile_id, self.broker.now)
            self._forget_if_gone(mobile_id)
            self.has_work = True

    def _forget_if_gone(self, mobile_id: str) -> None:
        if mobile_id not in self.machine.mobiles:
            self._addresses.pop(mobile_id, None)
            self._users.pop(mobile_id, None)

    def receive(self, connection: Channel, publication: Message) -> None:
        mobile_id = _mobile_of(connection)
        self.machine.receive_publication(mobile_id, publication, self.broker.now)
        self._kept.note(stores=True, but=mobile_id)
        if not codec.is_event(publication) and not publication.topic.startswith(f"{self.domain}/"):
            # It would be of no use, and say nothing, for as long as it is there.
            connection.disconnect(Reason.NOT_AUTHORIZED, f"the domain of this broker is {self.domain}")
        self.has_work = True

    # Events

    def published(self, message: Message) -> None:
        """Here, by whomever, and mobile brokers have registered its topic."""
        self.machine.publish(message, self.broker.now)
        if self._kept.is_on and message.qos:
            # Now: whoever published it hears that it was taken when this is stored.
            self._deliver_all()
            self._kept.note(stores=True)
        self.has_work = True

    def _deliver_all(self) -> None:
        for delivery in self.machine.take_deliveries():
            self._deliver(delivery)

    def _deliver(self, delivery: Notification) -> None:
        self.broker.durability.store_separately()
        for callback, qos in delivery.callbacks:
            self.guests.deliver(callback, delivery, qos)
        self.guests.settle_if_done(delivery)

    def _publish_outside(self, message: Message) -> None:
        if not self._port.is_duplicate(message):
            self._port.publish(message)
            if message.qos:
                self.broker.durability.store_seen((message,))

    # Guests (`ClientMobility`)

    def expects(self, client_id: str, username: str | None) -> bool:
        return self.machine.callback_for(client_id, username) is not None

    def connected(self, connection: Channel) -> None:
        session = connection.connected_session()
        callback = self.machine.callback_for(session.client_id, session.username)
        if callback is None or is_name_unverified(connection):
            if session.client_id in self.machine.attached.expected:
                self.machine.turn_away(session.client_id, self.broker.now)
                self.has_work = True
            self.held.connected(session)
            return
        self.guests.arrived(callback, session)
        self.machine.client_attached(callback, self.broker.now)
        self.has_work = True

    def arriving(self, client_id: str, is_clean: bool) -> None:
        """Who comes here from a mobile broker was announced, and has the session that is kept here."""

    def disconnected(self, connection: Channel) -> None:
        """Its session stays as it is."""

    def keeps(self, session: Session) -> bool:
        return False

    def discarded(self, session: Session) -> None:
        callback = self.guests.callback_of(session)
        if callback is not None:
            self._leave(callback)
            self.has_work = True
        else:
            self.held.discarded(session)

    def _leave(self, callback: str) -> None:
        # What was matched for it in this turn is among what it did not get.
        self._deliver_all()
        undelivered = self.guests.leave(callback)
        now = self.broker.now
        self.machine.client_left(callback, [], now)
        for is_again, deliveries in groupby(undelivered, may_have_come):
            handed_back = [(delivery.message, delivery.qos) for delivery in deliveries]
            self.machine.client_left(callback, handed_back, now, is_again)
        self._kept.left(callback)

    def subscribes(self, session: Session, record: SubscriptionRecord) -> bool:
        callback, wanted = self.guests.callback_of(session), record.subscription
        if callback is None or _is_own(wanted.topic_filter):
            return False
        asked = GuestSubscription(
            wanted.topic_filter,
            callback,
            wanted.qos,
            wanted.no_local,
            wanted.retain_as_published,
            record.subscription_identifier,
        )
        self.machine.subscribe(asked, self.broker.now)
        if not is_plain(record):
            self._homeward.append(callback)  # when it has its SUBACK
        self.has_work = True
        return True

    def unsubscribes(self, session: Session, topic_filter: str) -> bool:
        callback = self.guests.callback_of(session)
        if callback is None or _is_own(topic_filter):
            return False
        self.machine.unsubscribe(callback, topic_filter, self.broker.now)
        self.has_work = True
        return True

    def _send_home(self, callback: str, code: Renewal) -> None:
        session = self.guests.session_of(callback)
        owner = self.guests.owner_of(callback)
        address = self._addresses.get(owner, "")
        if session is None or not address:
            return
        self.guests.called_back(callback)
        if session.connection is not None:
            renew(session.connection, code, address)

    def _send_own(self, mobile_id: str) -> Iterator[None]:
        """A broker without delegation serves subscribers from now on: those of this broker's that it may
        serve are told where it is, and subscribe again there."""
        for session in list(self.broker.sessions.values()):
            self.broker.work += RENEWAL_WORK
            address = self._addresses.get(mobile_id, "")
            if address and session.connection is not None and self._may_serve(mobile_id, session):
                renew(session.connection, Renewal.RENEW_TOPICS, address)
            yield

    def _may_serve(self, mobile_id: str, session: Session) -> bool:
        """As with guests, a mobile broker gets those clients alone that somebody gave into its care. Those
        without a user are given to it by its name in `allow`."""
        connection = session.connection
        if connection is None or not session.role.is_movable or not session.subscriptions:
            return False
        if self.guests.callback_of(session) is not None or is_name_unverified(connection):
            return False
        if session.username is None:
            return self._allow is not None and mobile_id in self._allow
        return self.may_bring(mobile_id, session.username)

    # Time, and what comes out

    @property
    def deadline(self) -> float:
        due = self.machine.next_deadline()
        return min(
            float("inf") if due is None else due,
            self.guests.deadline,
            self._kept.deadline,
            self.held.deadline,
        )

    def handle_timer(self, now: float) -> None:
        self.broker.now = now
        self.machine.handle_timer(now)
        self.guests.handle_timer(now)
        self._kept.handle_timer(now)
        self.held.handle_timer(now)
        for callback in self.guests.take_lingering(now):
            self._send_home(callback, Renewal.ACTIVE_TOPICS)
        self.has_work = True

    def serve(self, now: float) -> None:
        self.broker.now = now
        while self.has_work:
            self.has_work = False
            for message in self.machine.take_outside():
                self._publish_outside(message)
            # Before events: a guest that has left since takes with it what was for it here.
            self._deliver_all()
            for event in self.machine.take_events():
                self._handle_event(event, now)
            homeward, self._homeward = self._homeward, []
            for callback in homeward:
                self._send_home(callback, Renewal.ACTIVE_TOPICS)
            self._kept.serve(now)
            self._deliver_all()
            # Each is for the link that there is now: a later one would take a HELLO of this for its own.
            written = [(self._links.get(name), each) for name, each in self.machine.take_publications(now)]
            packets = [
                (link, codec.packet_of(each, link in self._extended))
                for link, each in written
                if link is not None
            ]
            if packets:
                # What they acknowledge is stored before they leave.
                self.broker.durability.when_committed(partial(_write, packets))

    def _handle_event(self, event: DelegationEvent, now: float) -> None:
        match event:
            case Registered():
                self._register(event.mobile_broker, event.topic_filter, now)
                return  # Each subscription of each mobile broker is no news for the log.
            case Unregistered():
                self._kept.unregistered(event.mobile_broker, event.topic_filter)
                self._unregister(event.topic_filter)
                return
            case RoamingTold():
                self.held.told(event)
                return
            case MissedWhileAway():
                self.held.missed(event)
                return
            case Reborn():
                self.held.reborn(event)
                return
            case Forgotten():
                self._kept.forgotten(event.mobile_broker)
                self.held.forgotten(event.mobile_broker)
                self._forget_if_gone(event.mobile_broker)
            case CalledBack():
                self._send_home(event.callback, Renewal.ACTIVE_TOPICS)
            case RenewTopics():
                for callback in event.callbacks:
                    self._send_home(callback, Renewal.RENEW_TOPICS)
                steps = self._send_own(event.mobile_broker)
                self.broker.end_later(partial(self.broker.take_steps, steps))
            case ClientMoved(callback, False):
                self.send_off(callback)
        self._events.append(event)

    def _register(self, mobile_id: str, topic_filter: str, now: float) -> None:
        self._kept.registered(mobile_id, topic_filter)
        self._filters[topic_filter] += 1
        is_new = self._filters[topic_filter] == 1
        if is_new:
            self._port.listen(topic_filter, now)
        if mobile_id not in self._offers:
            self._offers[mobile_id] = {}
            self.broker.end_later(partial(self._go_on_offering, mobile_id))
        # One that it takes back and registers again begins anew, behind the others.
        self._offers[mobile_id].pop(topic_filter, None)
        self._offers[mobile_id][topic_filter] = self._offer_retained(mobile_id, topic_filter, is_new)
        self._kept.note()

    def _go_on_offering(self, mobile_id: str) -> bool:
        """What is retained, for one topic filter after the other. Is all of it offered?"""
        offers = self._offers[mobile_id]
        while offers:
            topic_filter, steps = next(iter(offers.items()))
            if not self.broker.take_steps(steps):
                break
            del offers[topic_filter]
        if not offers:
            del self._offers[mobile_id]
        self._kept.note()
        self.has_work = True
        return not offers

    def _offer_retained(self, mobile_id: str, topic_filter: str, is_new: bool) -> Iterator[None]:
        """`is_new`: no mobile broker had it, so that none knows of what was published before."""
        broker = self.broker
        backlog = Backlog(broker.retained, Subscription(topic_filter), None, with_tombstones=False)
        while not backlog.is_done and self._filters[topic_filter]:
            message = backlog.step(broker.retained, broker.now)
            broker.work += OFFER_WORK + backlog.looked_at // LOOKED_AT_PER_WORK
            if message is not None:
                broker.identify_late(message)
                if is_new:
                    self.published(message)
                self.machine.offer(mobile_id, topic_filter, message, broker.now)
            yield

    def _unregister(self, topic_filter: str) -> None:
        self._filters[topic_filter] -= 1
        if not self._filters[topic_filter]:
            del self._filters[topic_filter]
            self._port.unsubscribe(topic_filter)

    def send_off(self, callback: str) -> None:
        """Its mobile broker says that it is there, or it is at another one."""
        session = self.guests.session_of(callback)
        if session is None:
            return
        self._leave(callback)
        session.will = None  # The client lives, and its mobile broker has it.
        self.broker.owners.weigh(session)
        end_session(self.broker, session)

    def note(self, event: NodeEvent) -> None:
        self._events.append(event)

    def take_events(self) -> list[DelegationEvent | NodeEvent]:
        events, self._events = self._events, []
        return events

    def close(self, now: float) -> None:
        """Nothing to say: links and guests end as all connections of this broker do."""

    def is_linked(self, mobile_id: str) -> bool:
        return mobile_id in self._links

    def describe(self) -> Iterator[tuple[str, int, int]]:
        """Each mobile broker, how many topics it has registered here, and how many guests."""
        for mobile_id, mobile in self.machine.mobiles.items():
            yield mobile_id, len(mobile.topics), self.guests.count_of(mobile_id)


def _is_at(address: str, source: str) -> bool:
    """Is this HOST:PORT on the machine whose connection comes from `source`?"""
    host, source = parse_address(address)[0].lower(), source.removeprefix("::ffff:")
    return host == source or ((host == "localhost" or is_loopback(host)) and is_loopback(source))


def guest_right(username: str) -> str:
    """The topic that a mobile broker's user may write if the broker may bring clients of this user."""
    return GUEST_RIGHT + quote(username, safe="")


def _write(packets: Sequence[tuple[Channel, Packet]]) -> None:
    for link, packet in packets:
        if link.is_connected:
            link.send_packet(packet)


def _is_own(topic_filter: str) -> bool:
    """What begins with $ is each broker's own."""
    return split_shared(topic_filter)[1].startswith("$")


def _mobile_of(connection: Channel) -> str:
    return connection.connected_session().client_id.removeprefix(MOBILE_PREFIX)
