"""One bridge: when to connect and where, its session here, its state, and what it says of itself.

The session holds the bridge's subscriptions at this broker and, at QoS 1 and 2, what the far broker has yet
to acknowledge: it is stored like any durable session, so that a bridge goes on after a restart where it was.
What `FarConnection` does with an open link, this class does around it:

    waiting ──► connecting ──► up ──► waiting …    automatic
    idle ──► connecting ──► up ──► idle …          lazy: when enough waits, until nothing flows for a while
    connecting ──► up ──► stopped                  once

The shell opens a link where `take_dial` says, answers with `open` or `handle_dial_failed`, and calls
`handle_timer`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from enum import Enum
from hashlib import blake2b

from hedgerow.fabric.bridges.entries import MAX_CARRIER_ID, Entries
from hedgerow.fabric.bridges.events import BridgeDown, BridgeEvent, BridgeNotUp, BridgeUp
from hedgerow.fabric.bridges.far_connection import FarConnection
from hedgerow.fabric.bridges.foreign import Foreign
from hedgerow.fabric.bridges.section import Address, Section
from hedgerow.fabric.bridges.stamps import CONTROL_FILTER
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.broker.broker import Broker
from hedgerow.mqtt.broker.changes import SubscriptionRecord
from hedgerow.mqtt.broker.deliveries import drop_aged, pump
from hedgerow.mqtt.broker.ids import Inbound, Outbound
from hedgerow.mqtt.broker.limits import QueueLimits
from hedgerow.mqtt.broker.recent import send_recent
from hedgerow.mqtt.broker.session import Session
from hedgerow.mqtt.outbox import MAX_PACKET_ID, Delivery, Outbox
from hedgerow.mqtt.packets import MQTT_3_1, MQTT_3_1_1, MQTT_5, Subscription
from hedgerow.mqtt.reasons import Reason

VERSIONS = {None: MQTT_5, "mqttv31": MQTT_3_1, "mqttv311": MQTT_3_1_1, "mqttv50": MQTT_5}

LOOK_S = 0.25  # how often a lazy bridge looks whether it is needed
FIRST_ADDRESS_S = 30.0  # how often one that has come to a second address tries the first again
DRAIN_S = 5.0  # for what is under way, when a bridge is deleted
QUIET_S = 0.3  # without a message from the far side: nothing is under way
AGE_CHECK_S = 10.0
_NOT_IN_A_LEVEL = re.compile("[/+#]")


class State(Enum):
    WAITING = "waiting"
    CONNECTING = "connecting"
    UP = "up"
    IDLE = "idle"
    STOPPED = "stopped"


class Bridge:
    """`random` gives numbers from 0 to 1; `token` a number of 48 bits that nobody else draws."""

    def __init__(
        self,
        broker: Broker,
        section: Section,
        now: float,
        random: Callable[[], float],
        token: Callable[[], int],
        entries: Entries,
    ) -> None:
        self.broker = broker
        self.section = section
        self.version = VERSIONS[section.bridge_protocol_version]
        self.state = State.IDLE if section.start_type == "lazy" else State.WAITING
        self.since = now
        self.reason = ""
        self.connection: FarConnection | None = None
        self.address: Address | None = None
        self.inbound = Inbound()
        self.is_changed = True
        self.is_draining = False
        self.events: list[BridgeEvent] = []
        self.on_up: Callable[[Bridge], None] = lambda bridge: None
        self.on_down: Callable[[Bridge], None] = lambda bridge: None
        self.on_change: Callable[[], None] = lambda: None
        self.listening_since = now  # What is published here later comes to the session by itself.
        self.listened_before: set[str] = set()  # to these filters, in an earlier life of the node
        self.taken: set[MessageId] = set()  # along, of what waits for others
        self.entries = entries  # what a foreign broker has got
        self._random = random
        self._token = token
        self.session = self._take_session()
        assert self.session.ledger is not None
        self.ledger: Outbound = self.session.ledger
        self._foreign: Foreign | None = None  # where the far broker gives no ids
        self._position = 0  # of the address to dial next
        self._was_up = False
        self._told_reason = ""
        self._delay_s = 0.0
        self._dial_at = float("inf") if self.state is State.IDLE else now
        self._look_at = now + LOOK_S if section.start_type == "lazy" else float("inf")
        self._trial_at = float("inf")
        self._age_at = now + AGE_CHECK_S
        self._drain_until = float("inf")
        self._active_at = now
        self._active_count = 0

    # The session at this broker

    def _take_session(self) -> Session:
        broker, section = self.broker, self.section
        client_id = section.local_clientid_on(broker.node_id)
        session = broker.sessions.get(client_id)
        if session is None:
            session = broker.create_session(client_id, section.local_username)
            # The far broker may remember packet identifiers of a session that was lost here, and would take
            # a new message for the old one (QoS 2).
            session.outbox = Outbox(broker.limits.in_flight)
            session.outbox.next_packet_id = 1 + self._token() % MAX_PACKET_ID
        for delivery in waiting_for(session):
            delivery.queued_at = delivery.queued_at or broker.now  # Since when is not stored.
        session.username = section.local_username
        session.is_bridge = session.is_peer = True
        session.ledger = session.ledger or Outbound(published=len(session.outbox or ()))
        session.queue_limits = QueueLimits(
            section.queue_bytes, section.queue_age_s, section.queue_overflow == "drop-oldest"
        )
        session.expiry_s = session.expires_at = float("inf")
        session.durable = session.durable or (
            broker.durability.enabled and not section.is_local_session_clean
        )
        broker.durability.store_session(session)
        self._subscribe_here(session)
        return session

    def _subscribe_here(self, session: Session) -> None:
        """The session's subscriptions are those of the lines that go out, and no others."""
        retain = self.section.bridge_outgoing_retain
        wanted: dict[str, Subscription] = {}
        for line in self.section.topics:
            if line.is_out:
                known = wanted.get(line.local_filter)
                qos = max(line.qos, known.qos) if known is not None else line.qos
                wanted[line.local_filter] = Subscription(line.local_filter, qos, True, retain)
        held = session.subscriptions or {}
        for topic_filter in held.keys() - wanted.keys():
            unsubscribe(self.broker, session, topic_filter)
        self.listened_before = held.keys() & wanted.keys()
        session.subscriptions = {}
        for topic_filter, subscription in wanted.items():
            if topic_filter not in held:
                send_recent(self.broker, session, subscription, self.entries.was_admitted)
            record = SubscriptionRecord(subscription)
            session.subscriptions[topic_filter] = record
            self.broker.subscriptions.add(session, subscription, None)
            self.broker.durability.store_subscription(session, topic_filter, record)

    # Topics

    def name_there(self, topic: str) -> str | None:
        """What the far broker calls a topic of this one; None when it is not to get it."""
        names = (line.to_remote(topic) for line in self.section.topics if line.is_out)
        return next((name for name in names if name is not None), None)

    def name_here(self, topic: str) -> str | None:
        names = (line.to_local(topic) for line in self.section.topics if line.is_in)
        return next((name for name in names if name is not None), None)

    # Connecting

    @property
    def deadline(self) -> float:
        at = min(self._dial_at, self._look_at, self._trial_at, self._age_at, self._drain_until)
        foreign = self.connection.foreign if self.connection is not None else None
        return min(at, foreign.deadline) if foreign is not None else at

    def take_dial(self, now: float) -> Address | None:
        """Where to open a link now, if that is due."""
        if self._dial_at <= now:
            self._dial_at = float("inf")
            self.address = self.section.addresses[self._position]
            self._become(State.CONNECTING, self.reason, now)
            return self.address
        if self._trial_at <= now:
            self._trial_at = now + FIRST_ADDRESS_S
            return self.section.addresses[0]
        return None

    def open(self, address: Address, now: float) -> FarConnection:
        """The link to this address is there."""
        old = self.connection
        if old is not None:
            old.leave("back to the first address", is_for_good=False)
            self.connection = None
        connection = FarConnection(self, now, str(address))
        if self.is_draining:  # It was deleted while the link was on its way.
            connection.out.clear()
            connection.end("the bridge is deleted")
            return connection
        self.address = address
        self._dial_at = self._trial_at = float("inf")
        self.connection = connection
        self._become(State.CONNECTING, self.reason, now)
        return connection

    def handle_dial_failed(self, address: Address, reason: str, now: float) -> None:
        if self.state is State.CONNECTING and self.connection is None and address == self.address:
            self._try_next_address()
            self._wait(reason, now)

    def _try_next_address(self) -> None:
        self._position = (self._position + 1) % len(self.section.addresses)

    def _wait(self, reason: str, now: float) -> None:
        """Before the next attempt: longer each time, and not all bridges at once."""
        if self.state is State.CONNECTING and reason != self._told_reason:
            self._told_reason = reason
            self.events.append(BridgeNotUp(self.section.name, str(self.address), reason))
        if self.section.start_type == "once" and self._was_up:
            self._become(State.STOPPED, reason, now)
            return
        if self.section.start_type == "lazy" and not self._is_needed:
            self._become(State.IDLE, reason, now)
            return
        base_s, cap_s = self.section.restart_timeout
        if base_s == cap_s:
            self._delay_s = base_s
        else:
            upper_s = min(cap_s, max(base_s, 3 * self._delay_s))
            self._delay_s = base_s + (upper_s - base_s) * self._random()
        # Another address need not wait for this one.
        self._dial_at = now + (0.0 if self._position else self._delay_s)
        self._become(State.WAITING, reason, now)

    # What the connection tells

    def handle_refused(self, connection: FarConnection, reason_code: int, reason: str) -> None:
        may_fall = self.section.bridge_protocol_version is None and self.version == MQTT_5
        if reason_code == Reason.UNSUPPORTED_PROTOCOL_VERSION and may_fall and not self._was_up:
            self.version = MQTT_3_1_1
            self._delay_s = 0.0
            position = self._position
            connection.end("the far broker knows no MQTT 5")
            self._position = position  # the same one again, and at once
            self._dial_at = self.broker.now
            return
        connection.end(f"the far broker refused the connection: {reason}")

    def handle_self(self, connection: FarConnection) -> None:
        self.connection = None
        connection.end("")
        self._become(State.STOPPED, "the far broker is this node itself", self.broker.now)

    def handle_connected(self, connection: FarConnection) -> None:
        """CONNACK came; the subscriptions are yet to be answered."""
        connection.inbound = self.inbound
        self._delay_s = 0.0
        # Now, not when the subscriptions are answered: what is published meanwhile is behind it.
        self.broker.resume(connection)
        if connection.is_subscribed:
            self._come_up(connection)

    def handle_subscribed(
        self, connection: FarConnection, answered: list[Subscription], refused: list[str]
    ) -> None:
        foreign = connection.foreign
        if foreign is not None and [each for each in answered if each.topic_filter == CONTROL_FILTER]:
            foreign.stamps.receive_subscribed(self.broker.now)
            foreign.serve()
        if connection.is_subscribed and self.state is not State.UP:
            self._come_up(connection)
        if refused:
            self.reason = f"the far broker does not let us subscribe: {', '.join(refused)[:200]}"
            self.is_changed = True

    def _come_up(self, connection: FarConnection) -> None:
        now = self.broker.now
        self._was_up = True
        self._told_reason = ""
        self._active_at = now
        if self._position and not self.section.round_robin:
            self._trial_at = now + FIRST_ADDRESS_S
        self._become(State.UP, "", now)
        self.events.append(BridgeUp(self.section.name, str(self.address), connection.far_node))
        self.notify_there(b"1")
        self._notify_here(b"1")
        if connection.is_first or connection.far_node is not None:
            for record in (self.session.subscriptions or {}).values():
                self.broker.queue_retained(connection, record.subscription, None)
            pump(connection)
        self.on_up(self)

    def handle_end(self, connection: FarConnection, reason: str) -> None:
        if connection is not self.connection:
            return
        self.connection = None
        self.on_change()
        now = self.broker.now
        if connection.foreign is not None:
            connection.foreign.disconnected(keeps_session=not self.section.cleansession)
        was_up = self.state is State.UP
        if was_up:
            self.events.append(BridgeDown(self.section.name, str(self.address), reason))
            self._notify_here(b"0")
        if self.section.is_local_session_clean:
            self._drop_queue()
        self._trial_at = float("inf")
        if self.is_draining:
            return
        self.on_down(self)
        if was_up and not self.section.round_robin:
            self._position = 0
        else:
            self._try_next_address()
        self._wait(reason, now)

    def _drop_queue(self) -> None:
        for delivery in waiting_for(self.session):
            self.ledger.discarded += 1
            self.broker.durability.finish_delivery(self.session, delivery)
        self.session.outbox = None

    def find_foreign(self, carries_ids: bool) -> Foreign:
        """What this bridge has to agree on with others at a broker that gives no ids."""
        if self._foreign is None:
            identity = f"{self._token():012x}{self._token():012x}"
            filters = [line.remote_filter for line in self.section.topics if line.is_in]
            self._foreign = Foreign(self.entries, self._token(), carries_ids, identity, filters)
        return self._foreign

    # Notifications

    def notify_there(self, payload: bytes) -> None:
        section, connection = self.section, self.connection
        if section.notifications and not section.notifications_local_only and connection is not None:
            topic = section.notification_topic_on(self.broker.node_id)
            connection.publish_there(Message(topic, payload, retain=True))

    def _notify_here(self, payload: bytes) -> None:
        if self.section.notifications:
            topic = self.section.notification_topic_on(self.broker.node_id)
            message = Message(topic, payload, 1, True)
            self.broker.publish(message, self.broker.subscriptions.route(topic), self.session)

    def forget_notification(self) -> None:
        """It is deleted: bridges that come and go would leave a retained message each, in this store."""
        if self.broker.retained.get(self.section.notification_topic_on(self.broker.node_id)) is not None:
            self._notify_here(b"")

    # Time

    def handle_timer(self, now: float) -> None:
        self.broker.now = now
        connection = self.connection
        foreign = connection.foreign if connection is not None else None
        if foreign is not None and foreign.deadline <= now:
            foreign.handle_timer(now)
        if self._age_at <= now:
            self._age_at = now + AGE_CHECK_S
            drop_aged(self.broker, self.session)
        if self._look_at <= now:
            self._look_at = now + LOOK_S
            self._look(now)

    @property
    def _is_needed(self) -> bool:
        return len(self.session.outbox or ()) >= self.section.threshold

    def _look(self, now: float) -> None:
        """A lazy bridge connects when enough waits, and leaves when nothing has flowed for a while."""
        count = self.ledger.relayed + self.inbound.published
        if count != self._active_count or len(self.session.outbox or ()):
            self._active_count, self._active_at = count, now
        if self.state is State.IDLE and self._is_needed:
            self._dial_at = now
        elif (
            self.state is State.UP
            and self.connection is not None
            and now >= self._active_at + self.section.idle_timeout_s
        ):
            self.connection.leave("nothing to do", is_for_good=False)

    def _become(self, state: State, reason: str, now: float) -> None:
        if state is not self.state:
            self.since = now
        self.is_changed = self.is_changed or state is not self.state or reason != self.reason
        self.state = state
        self.reason = reason
        self.on_change()

    # The end

    def begin_drain(self, now: float) -> None:
        """Take nothing more; what is under way still arrives, on both sides."""
        self.is_draining = True
        self._dial_at = self._look_at = self._trial_at = float("inf")
        self._drain_until = now + DRAIN_S
        stop_listening(self.broker, self.session)
        if self.connection is not None:
            self.connection.unsubscribe()

    def is_drained(self, now: float) -> bool:
        connection = self.connection
        if connection is None or not connection.is_connected or now >= self._drain_until:
            return True
        return not len(self.session.outbox or ()) and now >= self._quiet_since(now) + QUIET_S

    def _quiet_since(self, now: float) -> float:
        count = self.inbound.published
        if count != self._active_count:
            self._active_count, self._active_at = count, now
        return max(self._active_at, self._drain_until - DRAIN_S)

    def close(self, reason: str, is_for_good: bool) -> None:
        connection = self.connection
        self._dial_at = self._look_at = self._trial_at = self._age_at = self._drain_until = float("inf")
        self.is_draining = True
        if connection is not None:
            connection.leave(reason, is_for_good)

    # What people see

    def status(self) -> dict[str, object]:
        outbox = self.session.outbox
        inbound, ledger = asdict(self.inbound), asdict(self.ledger)
        inbound["relayed"] = (
            inbound["published"] - inbound["duplicates"] - inbound["outdated"] - inbound["refused"]
        )
        ledger["waiting"] = len(outbox or ())
        connection = self.connection
        is_up = self.state is State.UP and connection is not None
        return {
            "connection": self.section.name,
            "state": self.state.value,
            "address": str(self.address) if self.address is not None else None,
            "far": connection.far_node if is_up and connection is not None else None,
            "since": round(self.since, 3),
            "reason": self.reason,
            "protocol": self.version if is_up else None,
            "queued": len(outbox or ()),
            "queued_bytes": outbox.bytes if outbox is not None else 0,
            "topics": [str(line) for line in self.section.topics],
            "out": ledger,
            "in": inbound,
        }


def carrier_id(section: Section, node_id: str) -> str:
    """Its client identifier at the far broker, or, where that is no level of a topic, what is made of it."""
    client_id = section.remote_clientid_on(node_id)
    if len(client_id) <= MAX_CARRIER_ID and not _NOT_IN_A_LEVEL.search(client_id):
        return client_id
    digest = blake2b(client_id.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{_NOT_IN_A_LEVEL.sub('.', client_id[:64])}.{digest}"


def unsubscribe(broker: Broker, session: Session, topic_filter: str) -> None:
    broker.subscriptions.remove(session, topic_filter)
    broker.durability.store_subscription(session, topic_filter, None)


def stop_listening(broker: Broker, session: Session) -> None:
    """Nothing more is taken from this broker."""
    for topic_filter in session.subscriptions or ():
        unsubscribe(broker, session, topic_filter)
    session.subscriptions = {}


def waiting_for(session: Session) -> list[Delivery]:
    """What its far side has yet to acknowledge, in order."""
    outbox = session.outbox
    return [] if outbox is None else [*outbox.in_flight.values(), *outbox.queue]
