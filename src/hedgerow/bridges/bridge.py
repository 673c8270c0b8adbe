"""One bridge: when it is to be connected, its state, and what it says of itself.

What `FarConnection` does with an open link, this class does around it:

    waiting ──► connecting ──► up ──► waiting …    automatic
    idle ──► connecting ──► up ──► idle …          lazy: when enough waits, until nothing flows for a while
    connecting ──► up ──► stopped                  once

The shell opens a link where `take_dial` says, answers with `open` or `handle_dial_failed`, and calls
`handle_timer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import Enum

from hedgerow.bridges.admission import Admission
from hedgerow.bridges.bridge_session import drop_queue, stop_listening, subscribe, take_session
from hedgerow.bridges.dialling import Dialling
from hedgerow.bridges.events import (
    BridgeClosed,
    BridgeDown,
    BridgeEvent,
    BridgeNotUp,
    BridgeUp,
    MessagesDroppedThere,
)
from hedgerow.bridges.fabric_key import FabricKey
from hedgerow.bridges.far_connection import FarConnection
from hedgerow.bridges.foreign import Foreign
from hedgerow.bridges.section import FarAddress, Section
from hedgerow.bridges.stamps import CONTROL_FILTER
from hedgerow.broker.broker import Broker
from hedgerow.broker.deliveries import drop_aged, enqueue_first, pump
from hedgerow.broker.dialled import MAX_CACHED_NAMES
from hedgerow.broker.handle_connect import resume
from hedgerow.broker.ledger import Inbound, Outbound
from hedgerow.broker.publishing import publish_message
from hedgerow.broker.retaining import queue_retained
from hedgerow.broker.role import Role
from hedgerow.broker.suspects import HURRY_S, is_hurried
from hedgerow.broker.told import NOTHING_TOLD, Told
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.dropped_there import DroppedThere
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import MQTT_3_1, MQTT_3_1_1, MQTT_5, Subscription
from hedgerow.mqtt.reasons import Reason
from hedgerow.topics import matches

VERSIONS = {None: MQTT_5, "mqttv31": MQTT_3_1, "mqttv311": MQTT_3_1_1, "mqttv50": MQTT_5}

LOOK_S = 0.25  # how often a lazy bridge looks whether it is needed
DRAIN_S = 5.0  # for what is under way, when a bridge is deleted
QUIET_S = 0.3  # without a message from the far side: nothing is under way
AGE_CHECK_S = 10.0


class BridgePhase(Enum):
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
        role: Role,
        now: float,
        random: Callable[[], float],
        token: Callable[[], int],
        admission: Admission,
        key: FabricKey,
    ) -> None:
        self.broker = broker
        self.section = section
        self.version = VERSIONS[section.bridge_protocol_version]
        self.state = BridgePhase.IDLE if section.start_type == "lazy" else BridgePhase.WAITING
        self.since = now
        self.reason = ""
        self.connection: FarConnection | None = None
        self.address: FarAddress | None = None
        self.inbound = Inbound()
        self.dropped_there = DroppedThere()
        self.round_trip_s: float | None = None
        """Of the last probe: its answer stands behind what the far broker has yet to send."""
        self.is_changed = True
        self.is_draining = False
        self._is_closing = False
        self.events: list[BridgeEvent] = []
        self.on_up: Callable[[Bridge], None] = lambda bridge: None
        self.on_down: Callable[[Bridge], None] = lambda bridge: None
        self.on_change: Callable[[], None] = lambda: None
        self.listening_since = now  # What is published here later comes to the session by itself.
        self.taken: set[MessageId] = set()  # along, of what waits for others
        self.key = key
        self.token = token
        self.admission = admission  # what a foreign broker has got
        self.session = take_session(broker, section, role, token)
        # To these filters, in an earlier life of the node.
        self.listened_before, self._recent = self._subscribe_here()
        """The second: what has just flowed. It waits for the first attempt to connect, in which the far node
        tells what of that it has: to store and send all of it takes longer than the attempt."""
        assert self.session.ledger is not None
        self.ledger: Outbound = self.session.ledger
        self._names: dict[str, str | None] = {}
        self._foreign: Foreign | None = None  # where the far broker gives no ids
        self._was_up = False
        self._told_reason = ""
        self._dialling = Dialling(section, random, float("inf") if self.state is BridgePhase.IDLE else now)
        self._look_at = now + LOOK_S if section.start_type == "lazy" else float("inf")
        self._age_at = now + AGE_CHECK_S
        self._drain_until = float("inf")
        self._active_at = now
        self._active_count = 0
        if self.state is BridgePhase.IDLE:
            self.take_recent(NOTHING_TOLD)

    def take_recent(self, told: Told) -> None:
        """What has just flowed goes before what was published since, but for what the far node has."""
        recent, self._recent = self._recent, []
        if recent:
            lacking = [each for each in recent if each.message.id not in told]
            enqueue_first(self.broker, self.session, lacking)

    def _subscribe_here(self) -> tuple[set[str], list[Delivery]]:
        return subscribe(self.broker, self.session, self.section, self.admission.was_admitted)

    # Topics

    def name_there(self, topic: str) -> str | None:
        """What the far broker calls a topic of this one; None when it is not to get it."""
        if topic not in self._names:
            if len(self._names) >= MAX_CACHED_NAMES:
                self._names.clear()
            names = (line.to_remote(topic) for line in self.section.topics if line.is_out)
            self._names[topic] = next((name for name in names if name is not None), None)
        return self._names[topic]

    def name_here(self, topic: str) -> str | None:
        names = (line.to_local(topic) for line in self.section.topics if line.is_in)
        return next((name for name in names if name is not None), None)

    def carries(self, topic: str) -> bool:
        """May what is published there go this way?"""
        return self.name_there(topic) is not None

    @property
    def is_up(self) -> bool:
        return self.state is BridgePhase.UP

    @property
    def is_stopped(self) -> bool:
        return self.state is BridgePhase.STOPPED

    def listens(self, topic: str) -> bool:
        """Does what is published there wait for this bridge, if need be?"""
        lines = self.section.topics
        return any(line.is_out and line.qos and matches(line.local_filter, topic) for line in lines)

    def filters_there(self) -> Sequence[str]:
        """What is subscribed to at the far broker."""
        return [line.remote_filter for line in self.section.topics if line.is_in]

    # Connecting

    @property
    def deadline(self) -> float:
        at = min(self._dialling.deadline, self._look_at, self._age_at, self._drain_until)
        foreign = self.connection.foreign if self.connection is not None else None
        return min(at, foreign.deadline) if foreign is not None else at

    def take_dial(self, now: float) -> FarAddress | None:
        """Where to open a link now, if that is due."""
        address = self._dialling.take_dial(now)
        if address is None:
            return self._dialling.take_trial(now)
        self.address = address
        self._become(BridgePhase.CONNECTING, self.reason, now)
        return address

    def open(self, address: FarAddress, now: float) -> FarConnection:
        """The link to this address is there."""
        old = self.connection
        if old is not None:
            old.leave("back to the first address", is_for_good=False)
            self.connection = None
        connection = self._connect(address, now)
        if self.is_draining:  # It was deleted while the link was on its way.
            connection.out.clear()
            connection.end("the bridge is deleted")
            return connection
        self.address = address
        self._dialling.stop()
        self.connection = connection
        self._become(BridgePhase.CONNECTING, self.reason, now)
        return connection

    def _connect(self, address: FarAddress, now: float) -> FarConnection:
        return FarConnection(self, now, str(address))

    def handle_dial_failed(self, address: FarAddress, reason: str, now: float) -> None:
        self.take_recent(NOTHING_TOLD)
        if self.state is BridgePhase.CONNECTING and self.connection is None and address == self.address:
            self._dialling.try_next_address()
            self._wait(reason, now)

    def _wait(self, reason: str, now: float) -> None:
        """For the next attempt, if there is to be one."""
        if self.state is BridgePhase.CONNECTING and reason != self._told_reason:
            self._told_reason = reason
            self.events.append(
                BridgeNotUp(self.section.name, str(self.address), reason, self.section.follows)
            )
        if self.section.start_type == "once" and self._was_up:
            self._become(BridgePhase.STOPPED, reason, now)
            return
        if self.section.start_type == "lazy" and not self._is_needed:
            self._become(BridgePhase.IDLE, reason, now)
            return
        self._dialling.wait(now)
        self._become(BridgePhase.WAITING, reason, now)

    # What the connection tells

    def handle_refused(self, connection: FarConnection, reason_code: int, reason: str) -> None:
        may_fall = self.section.bridge_protocol_version is None and self.version == MQTT_5
        if reason_code == Reason.UNSUPPORTED_PROTOCOL_VERSION and may_fall and not self._was_up:
            self.version = MQTT_3_1_1
            self._dialling.forget_delay()
            position = self._dialling.position
            connection.end("the far broker knows no MQTT 5")
            self._dialling.dial(position, self.broker.now)  # the same one again, and at once
            return
        connection.end(f"the far broker refused the connection: {reason}")

    def handle_self(self, connection: FarConnection) -> None:
        self._stop(connection, "the far broker is this node itself")

    def _stop(self, connection: FarConnection, reason: str) -> None:
        """Trying again would change nothing."""
        self.connection = None
        connection.end("")
        self._become(BridgePhase.STOPPED, reason, self.broker.now)

    def handle_connected(self, connection: FarConnection) -> None:
        """CONNACK came; the subscriptions are yet to be answered."""
        connection.inbound = self.inbound
        self._dialling.forget_delay()
        # Now, not when the subscriptions are answered: what is published meanwhile is behind it.
        resume(connection)
        if connection.is_subscribed:
            self._come_up(connection)

    def handle_subscribed(
        self, connection: FarConnection, answered: list[Subscription], refused: list[str]
    ) -> None:
        foreign = connection.foreign
        if foreign is not None and [each for each in answered if each.topic_filter == CONTROL_FILTER]:
            foreign.stamps.receive_subscribed(self.broker.now)
            foreign.serve()
        if connection.is_subscribed and not self.is_up:
            self._come_up(connection)
        if refused:
            self.reason = f"the far broker does not let us subscribe: {', '.join(refused)[:200]}"
            self.is_changed = True

    def _come_up(self, connection: FarConnection) -> None:
        now = self.broker.now
        self._was_up = True
        self._told_reason = ""
        self._active_at = now
        self._dialling.handle_up(now)
        self._become(BridgePhase.UP, "", now)
        section = self.section
        self.events.append(
            BridgeUp(
                section.name, str(self.address), connection.far_node, section.follows, connection.is_proven
            )
        )
        self.notify_there(b"1")
        self._notify_here(b"1")
        for subscription in self._untold(connection):
            queue_retained(self.broker, connection, subscription, None)
        pump(self.broker, connection)
        self.on_up(self)

    def _untold(self, connection: FarConnection) -> list[Subscription]:
        """Those of our subscriptions here whose retained values the far broker is to get."""
        if not connection.is_first and connection.far_node is None:
            return []
        return [record.subscription for record in (self.session.subscriptions or {}).values()]

    def handle_end(self, connection: FarConnection, reason: str) -> None:
        if connection is not self.connection:
            return
        self.connection = None
        self.take_recent(NOTHING_TOLD)
        self.round_trip_s = None
        self.on_change()
        now = self.broker.now
        if connection.foreign is not None:
            connection.foreign.disconnected(keeps_session=not self.section.cleansession)
        was_up = self.is_up
        if was_up:
            kind = BridgeClosed if self._is_closing else BridgeDown
            self.events.append(kind(self.section.name, str(self.address), reason, self.section.follows))
            self._notify_here(b"0")
        if self.section.is_local_session_clean:
            drop_queue(self.broker, self.session, self.ledger)
        self._dialling.stop()
        if self.is_draining:
            return
        self.on_down(self)
        if is_hurried(self.broker, self.session) and self.section.start_type != "once":
            self._dialling.hurry(now, HURRY_S)
            self._become(BridgePhase.WAITING, reason, now)
            return
        if was_up and not self.section.round_robin:
            self._dialling.position = 0
        else:
            self._dialling.try_next_address()
        self._wait(reason, now)

    def find_foreign(self, carries_ids: bool) -> Foreign:
        """What this bridge has to agree on with others at a broker that gives no ids."""
        if self._foreign is None:
            identity = f"{self.token():012x}{self.token():012x}"
            self._foreign = Foreign(
                self.admission, self.token(), carries_ids, identity, self.filters_there(), self.key
            )
        return self._foreign

    def hear_dropped(self, payload: bytes) -> None:
        """What the far broker says of messages that it dropped."""
        more = self.dropped_there.hear(payload)
        if more:
            self.events.append(MessagesDroppedThere(self.section.name, str(self.address), more))
            self.is_changed = True
            self.on_change()

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
            publish_message(self.broker, message, self.broker.subscriptions.route(topic), self.session)

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
        return self.session.waiting_count >= self.section.threshold

    def _look(self, now: float) -> None:
        """A lazy bridge connects when enough waits, and leaves when nothing has flowed for a while."""
        count = self.ledger.relayed + self.inbound.published
        if count != self._active_count or self.session.waiting_count:
            self._active_count, self._active_at = count, now
        if self.state is BridgePhase.IDLE and self._is_needed:
            self._dialling.dial(self._dialling.position, now)
        elif (
            self.is_up
            and self.connection is not None
            and now >= self._active_at + self.section.idle_timeout_s
        ):
            self.connection.leave("nothing to do", is_for_good=False)

    def _become(self, state: BridgePhase, reason: str, now: float) -> None:
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
        self.take_recent(NOTHING_TOLD)
        self._dialling.stop()
        self._look_at = float("inf")
        self._drain_until = now + DRAIN_S
        stop_listening(self.broker, self.session)
        if self.connection is not None:
            self.connection.unsubscribe()

    def is_drained(self, now: float) -> bool:
        connection = self.connection
        if connection is None or not connection.is_connected or now >= self._drain_until:
            return True
        return not self.session.waiting_count and now >= self._quiet_since(now) + QUIET_S

    def _quiet_since(self, now: float) -> float:
        count = self.inbound.published
        if count != self._active_count:
            self._active_count, self._active_at = count, now
        return max(self._active_at, self._drain_until - DRAIN_S)

    def close(self, reason: str, is_for_good: bool) -> None:
        connection = self.connection
        self.take_recent(NOTHING_TOLD)
        self._dialling.stop()
        self._look_at = self._age_at = self._drain_until = float("inf")
        self.is_draining = self._is_closing = True
        if connection is not None:
            connection.leave(reason, is_for_good)

    # What people see

    def ledgers(self) -> dict[str, dict[str, int]]:
        """What became of messages, by direction; `published` is the sum of the others, but for those that a
        foreign broker dropped, which never came."""
        outward, inward = asdict(self.ledger), asdict(self.inbound)
        outward["waiting"] = self.session.waiting_count
        inward["relayed"] = (
            inward["published"] - inward["duplicates"] - inward["outdated"] - inward["refused"]
        )
        inward["dropped_there"] = self.dropped_there.total
        return {"out": outward, "in": inward}

    def status(self) -> dict[str, object]:
        connection = self.connection
        is_up = self.is_up and connection is not None
        return {
            "connection": self.section.name,
            "state": self.state.value,
            "address": str(self.address) if self.address is not None else None,
            "far": connection.far_node if is_up and connection is not None else None,
            "since": round(self.since, 3),
            "reason": self.reason,
            "protocol": self.version if is_up else None,
            "queued": self.session.waiting_count,
            "queued_bytes": self.session.queued_bytes,
            "topics": self.topics(),
            **self.ledgers(),
        }

    def topics(self) -> list[str]:
        return [str(line) for line in self.section.topics]
