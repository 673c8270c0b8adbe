"""The broker: sessions, who gets what, what is stored, and when.

A machine: bytes and `now` come in through its connections, bytes, changes to store, log events and
deadlines come out; it has no socket, clock or thread. Three rules carry it.

* A publication goes to every recipient of its topic's `Route`; what a recipient must get at QoS 1
  or 2 becomes a `Delivery` in its session's outbox.
* What must survive is stored before any packet leaves that speaks of it (`durability.py`).
* Nothing that a peer can make grow is without a limit (`limits.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from heapq import heapify, heappop, heappush

from hedgerow.broker import directed, handle_connect, session_end
from hedgerow.broker.access import Access
from hedgerow.broker.changes import Changes, Snapshot
from hedgerow.broker.connection import Connection, Pause, State
from hedgerow.broker.deliveries import (
    DELIVERY_WORK,
    PUBLICATION_WORK,
    PURGE_S,
    drop_unreadable,
    enqueue,
    pump,
    send_counted,
)
from hedgerow.broker.durability import Durability
from hedgerow.broker.events import Event
from hedgerow.broker.handle_publish import release
from hedgerow.broker.ids import is_before
from hedgerow.broker.journalling import Journal, record, record_messages
from hedgerow.broker.limits import Limits
from hedgerow.broker.mobility import Mobility, TopicMonitor
from hedgerow.broker.neighbours import Neighbourhood
from hedgerow.broker.peers import MAX_ID_BYTES, IdentifiedRun, send_run
from hedgerow.broker.port import Port, deliver_to_ports
from hedgerow.broker.recent import Recent
from hedgerow.broker.restore import restore
from hedgerow.broker.retained import Retained
from hedgerow.broker.retaining import may_have_forgotten, queue_retained, retain
from hedgerow.broker.routes import Recipient, Route, SharedGroup, SubscriptionTable, WireForm
from hedgerow.broker.runs import Run, deliver_run
from hedgerow.broker.session import Session
from hedgerow.broker.stats import Stats
from hedgerow.broker.systopics import SysTopics
from hedgerow.duplicates import DuplicateLog
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.outbox import Delivery, Stage
from hedgerow.mqtt.packets import Subscription
from hedgerow.mqtt.reasons import Reason
from hedgerow.topics import split_shared

# What one client's input may cost before others have their turn, in units of about a microsecond. A few
# bytes can ask for much: a publication to a thousand subscribers, a topic that is looked up among filters
# of "+" in every combination, a packet full of properties.
TURN_WORK = 10_000
MAX_VOID_TIMERS = 1_024  # Beside those of the connections and sessions that there are.


class Broker:
    def __init__(
        self,
        node_id: str,
        epoch: int,
        now: float,
        limits: Limits | None = None,
        access: Access | None = None,
        durable: bool = False,
        snapshot: Snapshot | None = None,
        verifies_passwords: bool = False,
        sys_interval_s: float = 10.0,
        version: str = "",
        administrators: frozenset[str] = frozenset(),
        begun_at: float = 0.0,
    ) -> None:
        """`begun_at`: how much of the epoch, from 0 to 1, was over when this life of the node began, for one
        that has no store to count its lives in."""
        self.node_id = node_id
        self.epoch = epoch
        self.begun_at = begun_at
        self.now = now
        self.limits = limits or Limits()
        self.access = access or Access()
        self.durability = Durability(self, durable)
        self.verifies_passwords = verifies_passwords
        self.administrators = administrators  # users who may command the node, whatever the ACL says
        self.duplicates = DuplicateLog()  # what has come to this node by any link
        self.duplicates.on_forget = self.durability.forget_seen
        self.recent = Recent()
        self.neighbourhood: Neighbourhood | None = None  # where the node is part of a federation
        self.mobility: Mobility | None = None  # where it is a mobile broker, or supports some
        self.monitor: TopicMonitor | None = None
        self.journal: Journal | None = None  # see `set_journal`
        self.speaks_renewals = False  # Does it take connections of the extension (`extension.py`)?
        self.supporter = ""  # HOST:PORT of the broker that supports this one, as such clients are told
        self.id_prefixes: dict[tuple[str, int], bytes] = {}  # by origin and epoch: ids up to their sequence
        self.stored_bridges: dict[str, str] = {}  # by name, as the store had them at the start
        # Of the fabric-wide message ids that begin here. No node gives so many in a second.
        self.sequence = int(begun_at * 2**24)
        self.stats = Stats()
        self.connections: set[Connection] = set()
        self.client_count = 0  # connections of clients whose CONNECT was accepted
        self.link_count = 0  # and those to and from other brokers
        self.sessions: dict[str, Session] = {}
        self.subscriptions = SubscriptionTable(self.access)
        self.retained = Retained(self.limits.retained_bytes)
        self.retained.tombstones.on_forget = partial(self.durability.store_retained, message=None)
        self.dirty: list[Connection] = []
        self.events: list[Event] = []
        self._logins: list[handle_connect.Login] = []
        self._pumping: deque[Connection] = deque()
        self._postponed: deque[Connection] = deque()
        self.work = 0
        self.turn_ends_at = 0  # when `work` is more than this
        self.encoded_properties: tuple[Message | None, float, bytes] = (None, 0, b"")
        # Timers are (at, tie-break, connection or session); what it was for is looked up when due. One
        # whose subject has another `timer_at` by then is void.
        self._timers: list[tuple[float, int, Connection | Session]] = []
        self._timer_count = 0
        self._assigned_client_ids = 0
        self._next_session_key = 1
        self.deadline = now  # when `handle_timer` is next needed
        self._purge_at = now  # when expired retained messages are next looked for
        if snapshot is not None:
            restore(self, snapshot)
        self._sys = SysTopics(self, now, sys_interval_s, version)

    # What the shell calls

    def open(
        self,
        now: float,
        address: str,
        anonymous: bool,
        certificate_name: str | None = None,
        transport: str = "tcp",
    ) -> Connection:
        self.now = now
        connection = Connection(self, now, address, anonymous, certificate_name, transport)
        self.add(connection)
        return connection

    def add(self, connection: Connection) -> None:
        """A connection is open, and has yet to say who it is."""
        self.stats.connections_opened += 1
        self.connections.add(connection)
        self.arm(self.now + self.limits.connect_timeout_s, connection)

    def take_dirty(self) -> list[Connection]:
        dirty, self.dirty = self.dirty, []
        return dirty

    def take_logins(self) -> list[handle_connect.Login]:
        logins, self._logins = self._logins, []
        return logins

    def finish_login(self, login: handle_connect.Login, accepted: bool, now: float) -> None:
        self.now = now
        connection = login.connection
        if connection.state is not State.LOGIN:
            return
        connection.state = State.NEW
        if not accepted:
            connection.refuse_connect(
                Reason.BAD_USER_NAME_OR_PASSWORD,
                f"bad user name or password for {login.username!r}",
                login.connect.client_id,
            )
            return
        handle_connect.establish(connection, login.connect, login.username)
        connection.go_on()

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def handle_timer(self, now: float) -> None:
        self.now = now
        try:
            self._handle_due(now)
        finally:
            self._set_deadline()

    def _set_deadline(self) -> None:
        self.deadline = self.now if self._pumping or self._postponed else float("inf")
        self._wake_at(self._sys.next_at)
        self._wake_at(self._purge_at)
        if self._timers:
            self._wake_at(self._timers[0][0])

    def _handle_due(self, now: float) -> None:
        for _ in range(len(self._pumping)):
            connection = self._pumping.popleft()
            connection.pumping = False
            pump(connection)
        for _ in range(len(self._postponed)):
            self._postponed.popleft().go_on()
        while self._timers and self._timers[0][0] <= now:
            at, _, subject = heappop(self._timers)
            if subject.timer_at != at:
                continue
            subject.timer_at = None
            if isinstance(subject, Connection):
                subject.check_time()
            else:
                session_end.check_time(self, subject)
        if self._purge_at <= now:
            self._purge(now)
        if self._sys.next_at <= now:
            self._sys.publish(now)

    def take_changes(self) -> Changes | None:
        """What is to be written in one transaction; None when there is nothing, or one is under way."""
        return self.durability.take_changes()

    def changes_committed(self, now: float) -> None:
        """The changes last taken are durable: what was held for them may leave."""
        self.now = now
        self.durability.committed()

    def set_access(self, access: Access) -> None:
        """New rules: forget every answer that was found under the old ones."""
        self.access = access
        self.subscriptions.access = access
        self.subscriptions.forget_all_routes()
        for connection in self.connections:
            connection.topics = None
            connection.repeated = None
        for session in self.sessions.values():
            drop_unreadable(self, session)

    def set_journal(self, journal: Journal, topic_filters: Sequence[str]) -> None:
        """Record what is published to topics that one of the filters matches."""
        self.journal = journal
        self.subscriptions.set_journalled(topic_filters)

    def shut_down(self, now: float) -> None:
        self.now = now
        for connection in list(self.connections):
            connection.disconnect(Reason.SERVER_SHUTTING_DOWN, "")

    # Turns

    def begin_turn(self) -> None:
        """A client's input is about to be handled."""
        self.turn_ends_at = self.work + TURN_WORK

    @property
    def turn_is_over(self) -> bool:
        return self.work > self.turn_ends_at

    def find_route(self, topic: str) -> Route:
        visited = self.subscriptions.visited
        route = self.subscriptions.route(topic)
        self.work += self.subscriptions.visited - visited
        return route

    def pump_later(self, connection: Connection) -> None:
        """There is more to send than fits into a turn."""
        connection.pumping = True
        self._pumping.append(connection)
        self._wake_at(self.now)

    def postpone(self, connection: Connection) -> None:
        """The rest of what this client asked for has to wait until others have been heard."""
        connection.pause(Pause.POSTPONED)
        self._postponed.append(connection)
        self._wake_at(self.now)

    # Connections and sessions

    def request_login(self, login: handle_connect.Login) -> None:
        login.connection.state = State.LOGIN
        login.connection.pause(Pause.LOGIN)
        self._logins.append(login)

    def assign_client_id(self) -> str:
        while True:
            self._assigned_client_ids += 1
            client_id = f"{self.node_id}-{self.epoch}-{self._assigned_client_ids}"
            if client_id not in self.sessions:
                return client_id

    def create_session(self, client_id: str, username: str | None, key: int | None = None) -> Session:
        session = Session(key or self._next_session_key, client_id, username)
        self._next_session_key = max(self._next_session_key, session.key) + 1
        self.sessions[client_id] = session
        return session

    def attach(self, connection: Connection) -> None:
        connection.state = State.CONNECTED
        connection.timer_at = None
        if connection.keep_alive_s:
            self.arm(self.now + connection.keep_alive_s * 1.5, connection)
        if connection.session is not None:
            self._count(connection.session, 1)

    def _count(self, session: Session, change: int) -> None:
        if session.is_link:
            self.link_count += change
        else:
            self.client_count += change
            self.stats.clients_maximum = max(self.stats.clients_maximum, self.client_count)

    def resume(self, connection: Connection) -> None:
        """Send again what was in flight, in order (MQTT-4.4.0-1), then what waited."""
        session = connection.session
        if session is None or session.outbox is None:
            return
        session.dropped = 0
        connection.resending = deque()
        for delivery in session.outbox.resend():
            if delivery.stage == Stage.RELEASED:
                # At once: only a PUBLISH waits for the Receive Maximum (MQTT-3.3.4-10).
                self.durability.send_exactly_once(connection, session, release(delivery.packet_id))
            else:
                connection.resending.append(delivery)
        pump(connection)

    def detach(self, connection: Connection, with_will: bool) -> None:
        """The connection is over: see to its will and its session (§3.1.2.5, §4.1)."""
        self.connections.discard(connection)
        session = connection.session
        if session is None or session.connection is not connection:
            return
        session.connection = None
        self._count(session, -1)
        session_end.connection_ended(self, session, connection, with_will)

    def discard(self, session: Session) -> None:
        """The session ends."""
        session_end.discard(self, session)

    def expire(self, session: Session, after_s: float) -> None:
        """End the session of a client that is not connected, unless it comes in time."""
        session_end.expire(self, session, after_s)

    def set_away(self, session: Session, is_away: bool) -> None:
        """Another broker serves the client, or this one does again."""
        if session.is_away != is_away:
            session.is_away = is_away
            for topic_filter in session.subscriptions or ():
                self.subscriptions.forget_routes(split_shared(topic_filter)[1])

    def _wake_at(self, at: float) -> None:
        self.deadline = min(self.deadline, at)

    def arm(self, at: float, subject: Connection | Session) -> None:
        """Look at the subject then, and not at the time that was set before."""
        self._wake_at(at)
        if len(self._timers) > 2 * (len(self.connections) + len(self.sessions)) + MAX_VOID_TIMERS:
            # Clients that come and go leave timers which are due in a day.
            self._timers = [timer for timer in self._timers if timer[2].timer_at == timer[0]]
            heapify(self._timers)
        subject.timer_at = at
        self._timer_count += 1
        heappush(self._timers, (at, self._timer_count, subject))

    # Publications

    def identify(self, message: Message) -> None:
        """Give the publication that was counted last its id, if it came without one."""
        if message.id is None:
            message.id = MessageId(self.node_id, self.epoch, self.sequence)

    def identify_late(self, message: Message) -> MessageId:
        """Its id, or, as nobody has needed it so far, any that is not in use."""
        if message.id is None:
            self.sequence += 1
            self.identify(message)
        assert message.id is not None
        return message.id

    def publish(self, message: Message, route: Route, publisher: Session | Port | None) -> int:
        """Pass a publication on; how many recipients it had."""
        self.sequence += 1
        if message.retain:
            retain(self, message, route, publisher)
        if message.qos and (route.peers or (publisher is not None and publisher.is_peer)):
            self.identify(message)
            self.recent.add(message, self.now)
            self.durability.store_seen((message,))
        if route.is_journalled:
            record(self, message, publisher)
        if self.monitor is not None and route.has_clients and publisher is not None:
            self.monitor.note(route.topic, self.now)
        recipients = route.recipients
        count = len(recipients)
        self.work += PUBLICATION_WORK + DELIVERY_WORK * count
        count += len(route.withheld)
        if message.first_at is not None:
            # It comes late: for those who were subscribed when it was published.
            recipients = [each for each in recipients if not is_before(message, each.since)]
        for recipient in recipients:
            self._deliver(recipient, message, publisher)
        for group in route.groups:
            count += self.deliver_to_one(group, message, publisher)
        if route.ports:
            # Last: they may publish in turn, which is behind this message for everyone.
            self.work += DELIVERY_WORK * len(route.ports)
            count += deliver_to_ports(self, message, route, publisher)
        return count

    def publish_run(self, run: Run, route: Route, publisher: Session) -> None:
        """Pass on publications in a row that `runs.most_in_a_row` has let through."""
        messages = run.messages
        is_between_brokers = bool(route.peers) or publisher.is_peer
        needs_ids = is_between_brokers or self.durability.enabled or route.is_journalled
        if run.origin is None and needs_ids:
            for sequence, message in enumerate(messages, self.sequence + 1):
                message.id = MessageId(self.node_id, self.epoch, sequence)
        self.sequence += len(messages)
        if is_between_brokers:
            self.recent.add_run(messages, run.bytes, self.now)
            self.durability.store_seen(messages)
        if route.is_journalled:
            record_messages(self, messages, publisher)
        if self.monitor is not None and route.has_clients:
            self.monitor.note_many(route.topic, len(messages), self.now)
        self.work += (PUBLICATION_WORK + DELIVERY_WORK * len(route.recipients)) * len(messages)
        for recipient in route.recipients:
            if not deliver_run(self, recipient, run, publisher):
                for message in messages:
                    self._deliver(recipient, message, publisher)

    def send_to_peers(
        self,
        route: Route,
        first_sequence: int,
        payloads: list[bytes],
        payload_bytes: int,
        publisher: Session | None,
    ) -> None:
        """Publications in a row that began here, to the other brokers among the recipients. QoS 0."""
        self.work += len(payloads) // 2
        sequences = range(first_sequence, first_sequence + len(payloads))
        run = IdentifiedRun(self.node_id, self.epoch, sequences, payloads, payload_bytes + MAX_ID_BYTES)
        send_run(route, run, publisher)

    def deliver_individually(self, message: Message, route: Route, publisher: Session | None) -> None:
        """The recipients that the short path leaves over. QoS 0."""
        self.work += DELIVERY_WORK * (len(route.others) + len(route.groups) + len(route.ports))
        for recipient in route.others:
            self._deliver(recipient, message, publisher)
        for group in route.groups:
            self.deliver_to_one(group, message, publisher)
        if route.ports:
            deliver_to_ports(self, message, route, publisher)

    def deliver_to(
        self, session: Session, message: Message, route: Route, qos: int, is_again: bool = False
    ) -> Delivery | None:
        """To one session, withheld or not, at `qos` at most; what is in its outbox by it.

        `is_again`: it may have got it already, from another broker.
        """
        return directed.deliver_to(self, session, message, route, qos, is_again)

    def deliver_to_rest(self, message: Message, route: Route, but: Port) -> None:
        """To all who are never withheld: other brokers, shared subscriptions, and ports but one."""
        self.identify_late(message)
        self.work += DELIVERY_WORK * (len(route.recipients) + len(route.groups) + len(route.ports))
        for recipient in route.recipients:
            if not recipient.session.is_client:
                self._deliver(recipient, message, but)
        for group in route.groups:
            self.deliver_to_one(group, message, but)
        if route.ports:
            deliver_to_ports(self, message, route, but)

    def deliver_to_one(self, group: SharedGroup, message: Message, publisher: Session | Port | None) -> bool:
        """To a member of a shared subscription (§4.8.2); False: there is none that may read it."""
        chosen = group.choose(self.access, message.topic)
        if chosen is not None:
            self.durability.store_separately()
            self._deliver(chosen, message, publisher, group)
        return chosen is not None

    def _deliver(
        self,
        recipient: Recipient,
        message: Message,
        publisher: Session | Port | None,
        group: SharedGroup | None = None,
    ) -> None:
        session = recipient.session
        if recipient.no_local and session is publisher:
            own = recipient.for_own_publication()
            if own is None:
                return
            recipient = own
        if session is publisher and session.wire_form == WireForm.PEER:
            return  # The other broker has it.
        began_there = message.id is not None and message.id.origin == session.far_origin
        if began_there and not may_have_forgotten(session, message):
            return
        qos = message.qos if message.qos < recipient.qos else recipient.qos  # noqa: FURB136 (min is a call)
        retain = message.retain and recipient.retain_as_published
        if qos:
            if session.wire_form == WireForm.PEER:
                self.identify(message)
            delivery = Delivery(message, qos, retain, recipient.identifiers)
            delivery.group = group
            enqueue(self, session, delivery)
        elif session.ledger is not None:
            send_counted(session, message, retain)
        elif session.connection is not None:
            session.connection.send_message(message, retain, recipient.identifiers)

    # Retained messages

    def merge(self, message: Message, route: Route, publisher: Session | None) -> None:
        """A retained value that is the newest, and no news here: keep it, and tell other brokers alone."""
        self.identify_late(message)
        retain(self, message, route, publisher)
        kept = self.retained.newest(message.topic, self.now)
        if kept is None or kept.id != message.id:
            return
        for recipient in route.recipients:
            connection = recipient.session.connection
            # One that is away is told of all that is retained when it comes back.
            if connection is not None and connection.compares_ages and recipient.retain_as_published:
                self._deliver(recipient, kept, publisher)

    def _purge(self, now: float) -> None:
        for topic in self.retained.expired(now):
            self.retained.remove(topic)
            self.durability.store_retained(topic, None)
        self.retained.tombstones.purge(now)
        next_at = now if self.retained.expiring else self.retained.tombstones.ends_at
        self._purge_at = max(now + PURGE_S, next_at)

    def purge_later(self, at: float) -> None:
        """Something that is retained is over then."""
        self._purge_at = min(self._purge_at, max(at, self.now + PURGE_S))
        self._wake_at(self._purge_at)

    def queue_retained(
        self, connection: Connection, subscription: Subscription, identifier: int | None
    ) -> None:
        """What a subscription gets first, for `pump` to send behind the SUBACK."""
        queue_retained(self, connection, subscription, identifier)
