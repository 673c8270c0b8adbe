"""The bridges of a node: created, replaced, deleted, and what waits for one handed to another.

What waits at QoS 1 and 2 for a broker that is away may reach its subscribers another way: a bridge that comes
up takes along what waits here for other brokers that are not connected, and what a deleted bridge leaves goes
to those that are up, or stays until one is. Ids make that harmless: who has it already drops it.

What makes a bridge is imported with the first: most nodes have none, and start sooner and smaller without.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from hedgerow.bridges.bridge_session import stop_listening
from hedgerow.bridges.roles import BridgeRole, FarBridgeRole, ForeignBrokerRole
from hedgerow.broker.broker import Broker
from hedgerow.broker.deliveries import drop_aged, enqueue, keep_age
from hedgerow.broker.limits import QueueLimits
from hedgerow.broker.log_reading import newest_waiting, waiting
from hedgerow.broker.session import Session
from hedgerow.broker.stored import StoredQueue
from hedgerow.errors import ConfigError
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.outbox import Delivery, Stage
from hedgerow.topics import matches

if TYPE_CHECKING:
    from hedgerow.bridges.admission import Admission
    from hedgerow.bridges.bridge import Bridge
    from hedgerow.bridges.events import BridgeEvent
    from hedgerow.bridges.fabric_key import FabricKey
    from hedgerow.bridges.following import FollowingBridge
    from hedgerow.bridges.section import FarAddress, Section

COUNTERS_S = 5.0  # how often the counters of a state are told when nothing else changed
DRAIN_LOOK_S = 0.05
MAX_ADMISSIONS = 256  # of bridges that are or were; a log of 4 MiB at most each
# Of a queue whose bridge is not known any more: without, what nobody takes would be kept for ever.
LEFT_LIMITS = QueueLimits(64 * 1024 * 1024, age_s=86_400.0, drops_oldest=True)
MAX_LEFT = 256  # queues of deleted bridges: one for every name that was ever used would be too many


class BridgeSet:
    """`is_own(address)`: does this node itself listen there? `secret`: the key that nodes of one fabric
    share, asked for when the first bridge needs it."""

    def __init__(
        self,
        broker: Broker,
        random: Callable[[], float],
        token: Callable[[], int],
        is_own: Callable[[FarAddress], bool],
        secret: Callable[[], bytes],
    ) -> None:
        self._broker = broker
        self._random = random
        self._token = token
        self._is_own = is_own
        self._role = BridgeRole(broker.node_id)
        self._secret = secret
        self._key: FabricKey | None = None
        for role in (self._role, FarBridgeRole(broker, self._find_key, token), ForeignBrokerRole(broker)):
            broker.register(role)
        self._started_at = float("inf")  # until all that was stored is here
        self._bridges: dict[str, Bridge] = {}
        self._draining: list[Bridge] = []
        self._left: dict[Session, str] = {}  # by deleted bridges, with something that waits → their names
        self._admissions: OrderedDict[tuple[tuple[FarAddress, ...], str], Admission] = OrderedDict()
        self._gone: list[str] = []  # names whose state is to be taken away
        self._told: dict[str, dict[str, object]] = {}
        self._counters_at = 0.0
        self._look_at = float("inf")  # whether a deleted bridge is done
        self._events: list[BridgeEvent] = []
        self.has_work = True
        """Something happened: the shell is to look at dials, states, events and the deadline."""

    def _find_key(self) -> FabricKey:
        from hedgerow.bridges.fabric_key import FabricKey

        if self._key is None:
            self._key = FabricKey(self._secret())
        return self._key

    def __len__(self) -> int:
        return len(self._bridges)

    def __contains__(self, name: object) -> bool:
        return name in self._bridges

    def __iter__(self) -> Iterator[Bridge]:
        """Those too that are being deleted."""
        return iter([*self._bridges.values(), *self._draining])

    @property
    def kept(self) -> list[Bridge]:
        return list(self._bridges.values())

    # Commands

    def create(self, section: Section, now: float) -> str:
        """ "created", "replaced" or "unchanged". Raises ConfigError, and then nothing is changed."""
        from hedgerow.bridges.bridge import Bridge
        from hedgerow.bridges.following import FollowingBridge

        known = self._bridges.get(section.name)
        if known is not None and not section.replace:
            raise ConfigError(f"there is a bridge {section.name} already; replace true takes its place")
        if known is not None and known.section.follows and not section.follows:
            raise ConfigError(f"the bridge {section.name} is the node's own")
        for address in section.addresses:
            if self._is_own(address):
                raise ConfigError(f"{address} is this node itself")
        self._check_client_id(section)
        client_id = section.local_clientid_on(self._broker.node_id)
        session = self._broker.sessions.get(client_id)
        if session is not None and not self._may_take(session, section.name):
            raise ConfigError(f"the local client identifier {client_id} is in use")
        if known is not None:
            if _is_same(known.section, section) and not known.is_stopped:
                return "unchanged"
            self._take_away(known, section, client_id)
        for leaving in [bridge for bridge in self._draining if bridge.section.name == section.name]:
            leaving.close("another takes its place", is_for_good=False)
            self._draining.remove(leaving)
            self._events += leaving.events
            if leaving.session is not session:
                self._leave(leaving)
        if session is not None:
            self._left.pop(session, None)
        admission = self._find_admission(section)
        kind = FollowingBridge if section.follows else Bridge
        bridge = kind(
            self._broker, section, self._role, now, self._random, self._token, admission, self._find_key()
        )
        if known is not None and known.session is bridge.session and _hears_the_same(known.section, section):
            bridge.listening_since, bridge.taken = known.listening_since, known.taken
        if isinstance(known, FollowingBridge) and isinstance(bridge, FollowingBridge):
            bridge.take_over(known)
        if known is not None:
            bridge.listened_before &= known.listened_before
        bridge.on_up = self._take_along
        bridge.on_down = self._offer
        bridge.on_change = self._note_work
        self.has_work = True
        self._bridges[section.name] = bridge
        return "created" if known is None else "replaced"

    def follow(self, section: Section, now: float) -> FollowingBridge:
        """As `create`, of one that follows."""
        from hedgerow.bridges.following import FollowingBridge

        self.create(section, now)
        bridge = self._bridges[section.name]
        assert isinstance(bridge, FollowingBridge)
        return bridge

    def _check_client_id(self, section: Section) -> None:
        """Two with one client identifier would take the link from each other, for ever."""
        client_id = section.remote_clientid_on(self._broker.node_id)
        for other in self._bridges.values():
            is_other = other.section.name != section.name and set(other.section.addresses) & set(
                section.addresses
            )
            if is_other and other.section.remote_clientid_on(self._broker.node_id) == client_id:
                raise ConfigError(
                    f"bridge {other.section.name} has the client identifier {client_id} there already"
                )

    def _take_away(self, known: Bridge, section: Section, client_id: str) -> None:
        """Another takes its place, and its session where that has the same name."""
        if known.connection is not None:
            is_kept = known.section.follows  # by another that follows
            lines = {line.remote_filter for line in section.topics if line.is_in}
            known.connection.unsubscribe(known.filters_there() if is_kept else lines)
        known.close("another takes its place", is_for_good=False)
        self._events += known.events
        del self._bridges[section.name]
        if known.session.client_id != client_id:
            stop_listening(self._broker, known.session)
            self._leave(known)

    def _find_admission(self, section: Section) -> Admission:
        """What this bridge, or one before it, brought to a foreign broker, which would take it again."""
        from hedgerow.bridges.admission import Admission
        from hedgerow.bridges.carriers import carrier_id

        name = carrier_id(section, self._broker.node_id)
        admission = self._admissions.setdefault((section.addresses, name), Admission(name))
        self._admissions.move_to_end((section.addresses, name))
        if len(self._admissions) > MAX_ADMISSIONS:
            self._admissions.popitem(last=False)
        return admission

    def _may_take(self, session: Session, name: str) -> bool:
        """Is it this bridge's own, of an earlier life of the node or of the bridge?"""
        if any(bridge.session is session for bridge in self if bridge.section.name != name):
            return False
        return session.role is self._role

    def delete(self, name: str, now: float) -> None:
        """Raises ConfigError with the reason."""
        bridge = self._bridges.pop(name, None)
        if bridge is None:
            raise ConfigError(f"there is no bridge {name}")
        self._gone.append(name)
        self.has_work = True
        bridge.begin_drain(now)
        self._draining.append(bridge)
        self._finish_drained(now)

    def _finish_drained(self, now: float) -> None:
        for bridge in [each for each in self._draining if each.is_drained(now)]:
            self._draining.remove(bridge)
            bridge.close("the bridge is deleted", is_for_good=not bridge.session.waiting_count)
            bridge.forget_notification()
            self._events += bridge.events
            self._leave(bridge)
        self._look_at = now + DRAIN_LOOK_S if self._draining else float("inf")

    def leave_unclaimed(self) -> None:
        """Of the sessions that the store had, those of bridges that are no more, or were being deleted."""
        self._started_at = self._broker.now
        claimed = {bridge.session for bridge in self}
        for session in list(self._broker.sessions.values()):
            if session.role is self._role and session not in claimed:
                stop_listening(self._broker, session)
                self._left[session] = session.client_id
                session.queue_limits = LEFT_LIMITS
                for delivery in session.loaded():
                    delivery.queued_at = self._broker.now
                if session.stored is not None:
                    session.stored.came_at(self._broker.now)

    def _leave(self, bridge: Bridge) -> None:
        """What waits goes to bridges that are up, or stays for one that comes."""
        session = bridge.session
        session.ledger = None
        if len(self._left) >= MAX_LEFT:
            self._forget(next(iter(self._left)))
        self._left[session] = bridge.section.name
        self._offer(bridge)
        self._forget_carried(session, [other for other in self._bridges.values() if other.is_up])

    def _forget_carried(self, session: Session, bridges: list[Bridge]) -> None:
        """Of what a deleted bridge left, that which these bridges have now."""
        loaded: set[Delivery] = set()
        is_left = False
        for delivery in waiting(self._broker, session):
            if any(_carries(bridge, delivery) for bridge in bridges):
                loaded.add(delivery)
                self._broker.durability.finish_delivery(session, delivery)
            else:
                is_left = is_left or delivery.stage != Stage.RELEASED
        if session.outbox is not None:
            session.outbox.remove(loaded)
        if not is_left:
            self._forget(session)

    def _forget(self, session: Session) -> None:
        self._left.pop(session, None)
        if self._broker.sessions.get(session.client_id) is session:
            self._broker.discard(session)

    # What waits for others

    def _take_along(self, bridge: Bridge) -> None:
        """A bridge has come up: what waits here for brokers that are away goes there too."""
        waiting: set[MessageId] = set()
        for session in list(self._broker.sessions.values()):
            if session is bridge.session or session.connection is not None or not session.gives_ids:
                continue
            waiting |= self._take(bridge, session)
            if session in self._left:
                self._forget_carried(session, [bridge])
        bridge.taken &= waiting

    def _offer(self, bridge: Bridge) -> None:
        """A bridge is down: what waits for it goes by those that came up before that was known."""
        for other in self._bridges.values():
            if other.is_up and other.session is not bridge.session:
                self._take(other, bridge.session)

    def _take(self, bridge: Bridge, session: Session) -> set[MessageId]:
        """The ids of what waits there and the bridge carries: what it did not have yet, it has now.

        It had what was published here since it listens at QoS 1 or 2: at a broker that does not look at ids,
        once more would be twice. At QoS 2 not what the other side has said that it took.
        """
        known = {each.message.id for each in newest_waiting(self._broker, bridge.session)} | bridge.taken
        has_place = bridge.session.stored or StoredQueue()
        carried: set[MessageId] = set()
        count = 0
        for delivery in waiting(self._broker, session):
            if not _carries(bridge, delivery):
                continue
            message_id = self._broker.identify_late(delivery.message)
            carried.add(message_id)
            is_known = message_id in known or delivery.position in has_place
            is_new = not is_known and message_id.origin != bridge.session.far_origin
            if is_new and not self._had(bridge, session, delivery):
                bridge.taken.add(message_id)
                self._enqueue(bridge, delivery.message, delivery)
                count += 1
        if count:
            from hedgerow.bridges.events import QueueTaken

            self._events.append(
                QueueTaken(bridge.section.name, count, self._left.get(session, session.client_id))
            )
        return carried

    def _had(self, bridge: Bridge, session: Session, delivery: Delivery) -> bool:
        message = delivery.message
        if delivery.queued_at > bridge.listening_since and bridge.listens(message.topic):
            return True
        if bridge.connection is None or bridge.connection.foreign is None:
            return False
        is_left = session in self._left  # Then nobody else has it: twice is better than never.
        assert message.id is not None
        if bridge.admission.was_admitted(message.id) and not (is_left and delivery.packet_id):
            return True
        # Since when things wait, and what the foreign broker got, is not stored.
        is_old = delivery.queued_at <= self._started_at and not is_left
        return is_old and any(matches(each, message.topic) for each in bridge.listened_before)

    def _enqueue(self, bridge: Bridge, message: Message, delivery: Delivery) -> None:
        # The message has a place in the store for the one that it waits for, not for this one.
        self._broker.durability.store_separately()
        keep_age(delivery)
        enqueue(self._broker, bridge.session, Delivery(message, delivery.qos, delivery.retain))

    # What the shell asks for

    @property
    def deadline(self) -> float:
        at = min((bridge.deadline for bridge in self), default=float("inf"))
        # Without a bridge too, what one has left grows old.
        return min(at, self._look_at, self._counters_at if self._bridges or self._left else float("inf"))

    def handle_timer(self, now: float) -> None:
        self._broker.now = now
        for bridge in self:
            bridge.handle_timer(now)
        self._finish_drained(now)
        for session in list(self._left):
            drop_aged(self._broker, session, with_in_flight=True)
            if not session.waiting_count:
                self._forget(session)

    def serve(self, now: float) -> None:
        """What was put off while a message was being handled."""
        for bridge in self:
            if bridge.deadline == float("-inf"):
                bridge.handle_timer(now)

    def take_dials(self, now: float) -> list[tuple[Bridge, FarAddress]]:
        """Links to open."""
        due = [(bridge, bridge.take_dial(now)) for bridge in self._bridges.values()]
        return [(bridge, address) for bridge, address in due if address is not None]

    def changed(self, now: float) -> list[tuple[str, dict[str, object] | None]]:
        """States to tell: at once what changed, the counters from time to time. None: the bridge is gone."""
        told: list[tuple[str, dict[str, object] | None]] = []
        for name in self._gone:
            if name not in self._bridges:
                self._told.pop(name, None)
                told.append((name, None))
        self._gone.clear()
        with_counters = now >= self._counters_at
        if with_counters:
            self._counters_at = now + COUNTERS_S
        for name, bridge in self._bridges.items():
            if bridge.is_changed or with_counters:
                bridge.is_changed = False
                status = bridge.status()
                if self._told.get(name) != status:
                    self._told[name] = status
                    told.append((name, status))
        return told

    def _note_work(self) -> None:
        self.has_work = True

    def take_events(self) -> list[BridgeEvent]:
        events, self._events = self._events, []
        for bridge in self:
            events += bridge.events
            bridge.events = []
        return events

    def close(self, now: float) -> None:
        """The node stops; what waits is kept for its next start."""
        self._broker.now = now
        for bridge in self:
            bridge.close("the node stops", is_for_good=False)


def _is_same(one: Section, other: Section) -> bool:
    """Do they describe the same bridge? How it was asked for does not count."""
    return replace(one, replace=False) == replace(other, replace=False)


def _hears_the_same(one: Section, other: Section) -> bool:
    if one.follows or other.follows:
        return one.follows and other.follows  # The session keeps its filters.
    filters = [{line.local_filter for line in each.topics if line.is_out} for each in (one, other)]
    return filters[0] == filters[1]


def _carries(bridge: Bridge, delivery: Delivery) -> bool:
    """May it go that way, if it is not taken already?"""
    topic = delivery.message.topic
    return (
        delivery.stage != Stage.RELEASED
        and bridge.carries(topic)
        and bridge.session.may_read(bridge.broker.access, topic)
    )
