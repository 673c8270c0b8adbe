"""The broker: sessions, who gets what, what is stored, and when.

A machine: bytes and `now` come in through its connections, bytes, changes to store, log events and
deadlines come out; it has no socket, clock or thread. Four rules carry it.

* A publication goes to every recipient of its topic's `Route` (`publishing.py`); what a recipient must get at
  QoS 1 or 2 becomes a `Delivery` in its session's outbox.
* What must survive is stored before any packet leaves that speaks of it (`durability.py`).
* Nothing that a peer can make grow is without a limit (`limits.py`).
* It knows only MQTT. Features stand on four seams: a *role* for each kind of peer (`role.py`), *observers*
  of publications (`observer.py`), *ports* for parts that publish and subscribe (`port.py`), and *sources* of
  what is not published at this moment (`source.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop

from hedgerow.broker import handle_connect, handle_publish, handle_subscribe, session_end
from hedgerow.broker.access import Access
from hedgerow.broker.changes import Changes, Snapshot
from hedgerow.broker.connection import Connection, Dialect, State
from hedgerow.broker.core import ROUND_WORK, TURN_WORK, BrokerCore
from hedgerow.broker.deliveries import PURGE_S, drop_aged_stored, drop_unreadable, pump
from hedgerow.broker.events import Event
from hedgerow.broker.limits import Limits, LogBounds
from hedgerow.broker.log_pressure import make_room
from hedgerow.broker.observer import Observer
from hedgerow.broker.restore import restore
from hedgerow.broker.role import Role
from hedgerow.broker.roles import ClientRole, IdentifiedRole
from hedgerow.broker.session import Channel, Session
from hedgerow.broker.source import Source
from hedgerow.broker.stored import MessageLog
from hedgerow.broker.systopics import SysTopics
from hedgerow.broker.watching import set_role
from hedgerow.mqtt.packets import (
    AUTH,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBCALLBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Packet,
    Pingresp,
)
from hedgerow.mqtt.reasons import Reason

TIMER_WORK = 2
AGE_STEPS = 16  # What waits longer than it may is looked for so often in that time.
MAX_PURGED = 1_000  # Retained messages in one turn: a client can have all of them expire at one moment.


def _handle_pingreq(connection: Connection, packet: Packet) -> None:
    connection.send_packet(Pingresp())


# A type that is not here may only be sent by servers.
FROM_CLIENTS = Dialect(
    CONNECT,
    "CONNECT",
    {
        CONNECT: (handle_connect.handle_connect, State.NEW),
        PUBLISH: (handle_publish.handle_publish, State.CONNECTED),
        PUBCALLBACK: (handle_publish.handle_pubcallback, State.CONNECTED),
        PUBACK: (handle_publish.handle_acknowledgement, State.CONNECTED),
        PUBREC: (handle_publish.handle_acknowledgement, State.CONNECTED),
        PUBREL: (handle_publish.handle_acknowledgement, State.CONNECTED),
        PUBCOMP: (handle_publish.handle_acknowledgement, State.CONNECTED),
        SUBSCRIBE: (handle_subscribe.handle_subscribe, State.CONNECTED),
        UNSUBSCRIBE: (handle_subscribe.handle_unsubscribe, State.CONNECTED),
        PINGREQ: (_handle_pingreq, State.CONNECTED),
        DISCONNECT: (handle_connect.handle_disconnect, State.CONNECTED),
        AUTH: (handle_connect.handle_auth, State.CONNECTED),
    },
)


class Broker(BrokerCore):
    def __init__(
        self,
        node_id: str,
        epoch: int,
        now: float,
        limits: Limits | None = None,
        access: Access | None = None,
        durable: bool = False,
        snapshot: Snapshot | None = None,
        log: MessageLog | None = None,
        log_bounds: LogBounds | None = None,
        verifies_passwords: bool = False,
        sys_interval_s: float = 10.0,
        version: str = "",
        administrators: frozenset[str] = frozenset(),
        begun_at: float = 0.0,
    ) -> None:
        """`begun_at`: how much of the epoch, from 0 to 1, was over when this life of the node began, for one
        that has no store to count its lives in."""
        super().__init__(
            node_id,
            epoch,
            now,
            limits,
            access,
            durable,
            log,
            log_bounds,
            verifies_passwords,
            administrators,
            begun_at,
        )
        self._clients = ClientRole(self)
        self.client_role = self._clients
        self.identified_role = IdentifiedRole(self)
        self._set_roles({role.name: role for role in (self.identified_role, self.client_role)})
        if snapshot is not None:
            restore(self, snapshot)
        self._sys = SysTopics(self, now, sys_interval_s, version)

    # What features register

    def register(self, role: Role) -> None:
        """A feature runs: its role is offered CONNECTs first, and has the stored sessions of its name."""
        self._set_roles(
            {role.name: role} | {name: self.roles[name] for name in self.roles if name != role.name}
        )
        for session in list(self.sessions.values()):
            if session.role.name == role.name and session.role is not role:
                self._take_up(session, role)

    def replace_client_role(self, role: Role) -> None:
        """Clients have this role from now on, which takes the place of the plain one."""
        before, self.client_role = self.client_role, role
        self._set_roles(self.roles | {role.name: role})
        for session in list(self.sessions.values()):
            if session.role is before:
                self._take_up(session, role)

    def _set_roles(self, roles: dict[str, Role]) -> None:
        self.roles = roles
        self.claimants = tuple(sorted(roles.values(), key=lambda role: not role.prefix))  # Names come first.

    def _take_up(self, session: Session, role: Role) -> None:
        if role.listens and not session.role.listens:
            for record in (session.subscriptions or {}).values():
                self.subscriptions.add(session, record.subscription, record.subscription_identifier)
        set_role(self, session, role)

    def observe(self, observer: Observer) -> None:
        self.subscriptions.add_observer(observer)

    def serve(self, source: Source) -> None:
        """Subscriptions to filters below its prefix are its own, and no client publishes there."""
        self.sources.append(source)
        self.reserve(lambda topic: topic.startswith(source.prefix))

    def reserve(self, reserves: Callable[[str], bool]) -> None:
        """No client publishes to the topics of which this is true."""
        self.reserved.append(reserves)

    def take_commands(self, topics: Sequence[str]) -> None:
        """Clients may command a part of this node by publishing there; parts alone hear it."""
        self.commands.update(topics)
        self.subscriptions.private.update(topics)
        self.subscriptions.forget_all_routes()

    def kept_by(self, part: str) -> dict[str, str]:
        """What a part of the node had the store keep (`Durability.keep`), by key, as of the start."""
        return {key: text for (owner, key), text in self.kept.items() if owner == part}

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
        connection = Connection(self, now, address, anonymous, certificate_name, transport, FROM_CLIENTS)
        self.add_connection(connection, address)
        return connection

    def take_dirty(self) -> list[Channel]:
        dirty, self.dirty = self.dirty, []
        return dirty

    def take_logins(self) -> list[handle_connect.Login]:
        logins, self.logins = self.logins, []
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
        try:
            handle_connect.establish(connection, login.connect, login.username)
            connection.go_on()
        except Exception as error:
            connection.fail(error)

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def handle_timer(self, now: float) -> None:
        self.now = now
        self.round_ends_at = self.work + ROUND_WORK
        try:
            self._handle_due(now)
        finally:
            self._set_deadline()

    def _set_deadline(self) -> None:
        is_behind = self._pumping or self._postponed or self._endings
        self.deadline = self.now if is_behind else float("inf")
        self.wake_at(self._sys.next_at)
        self.wake_at(self.purge_at)
        if self._timers:
            self.wake_at(self._timers[0][0])

    def _handle_due(self, now: float) -> None:
        self._serve_waiting()
        ends_at = self.work + TURN_WORK
        # A hundred thousand sessions may be over at one moment.
        while self._timers and self._timers[0][0] <= now and self.work <= ends_at:
            at, _, subject = heappop(self._timers)
            if subject.timer_at != at:
                continue
            self.work += TIMER_WORK
            subject.timer_at = None
            try:
                if isinstance(subject, Session):
                    session_end.check_time(self, subject)
                else:
                    subject.check_time()
            except Exception as error:
                if isinstance(subject, Session):
                    self.note_failure(subject.client_id, error)
                else:
                    subject.fail(error)
        if self.purge_at <= now:
            self._purge(now)
        if self._sys.next_at <= now:
            self._sys.publish(now)

    def _serve_waiting(self) -> None:
        """Go on with what was too much for a turn: each once, in the order in which they wait, for a turn."""
        pumping, postponed, endings = len(self._pumping), len(self._postponed), len(self._endings)
        ends_at = self.work + TURN_WORK // 2
        for number in range(max(pumping, postponed, endings)):
            if self.work > ends_at:
                return  # The rest come first the next time.
            self.work += 1
            if number < pumping:
                connection = self._pumping.popleft()
                connection.pumping = False
                self._pump(connection)
            if number < postponed:
                waiting = self._postponed.popleft()
                assert isinstance(waiting, Connection)
                try:
                    waiting.go_on()
                except Exception as error:
                    waiting.fail(error)
            if number < endings:
                self.begin_turn()
                go_on = self._endings.popleft()
                try:
                    if not go_on():
                        self._endings.append(go_on)
                except Exception as error:
                    self.note_failure("", error)

    def take_changes(self) -> Changes | None:
        """What is to be written in one transaction; None when there is nothing, or one is under way."""
        self.durability.shares.look(self.durability.next_position, self.now)
        if self.durability.needs_room:
            waiting = self.durability.find_waiting()
            if waiting:
                make_room(self, waiting)
        return self.durability.take_changes(self.now)

    def take_finished(self) -> Changes | None:
        """As `take_changes`, while `durability.is_on_its_way`: nothing is written yet, and what everyone has
        acknowledged meanwhile lets go of what was held for it."""
        return self.durability.take_finished(self.now)

    def set_disk_room(self, has_room: bool, batch_bytes: float = float("inf")) -> None:
        """Is there room for the log on the disk? Without, what is published at QoS 1 and 2 waits.

        `batch_bytes`: of messages in one batch. What fails to be written is tried again, and nothing else is
        stored before that, not even what would make room.
        """
        self.durability.has_disk = has_room
        self.durability.disk_bytes = batch_bytes

    def segments_shrunk(self, found: Iterable[tuple[int, int, int]]) -> None:
        """Where segments begin that the log has written anew (`Changes.sparse`), their bytes, and how many
        messages are left of each."""
        for first, size, count in found:
            self.durability.needed.shrunk(first, size, count)

    def changes_committed(self, now: float) -> None:
        """The changes last taken are durable: what was held for them may leave."""
        self.now = now
        for connection in self.durability.committed():
            self._pump(connection)
        failures, self.durability.failures = self.durability.failures, []
        if failures:
            raise failures[0]

    def _pump(self, connection: Channel) -> None:
        try:
            pump(self, connection)
        except Exception as error:
            connection.fail(error)

    def offer(self, maximum_qos: int, takes_retained: bool) -> None:
        """To clients that connect from now on, of what MQTT has."""
        self._clients.offer(maximum_qos, takes_retained)

    def set_limits(self, limits: Limits) -> None:
        """For all that comes. What clients were told when they connected must not become less."""
        self.limits = limits
        self.owners.set_limits(limits)
        self.retained.set_max_bytes(limits.retained_bytes)

    def set_access(self, access: Access) -> None:
        """New rules: forget every answer that was found under the old ones."""
        self.access = access
        self.subscriptions.access = access
        self.forget_routes()
        for session in self.sessions.values():
            drop_unreadable(self, session)

    def forget_routes(self) -> None:
        """What topics have is found anew, when they have an event: also what connections remember of it."""
        self.subscriptions.forget_all_routes()
        for connection in self.connections:
            connection.forget_routes()

    def forget_rights(self, username: str) -> None:
        """The rights of one user are others now."""
        self.subscriptions.forget_all_routes()
        for connection in self.connections:
            if connection.session is not None and connection.session.username == username:
                connection.forget_routes()
        for session in self.sessions.values():
            if session.username == username:
                drop_unreadable(self, session)

    def shut_down(self, now: float) -> None:
        self.now = now
        self.durability.store_in_flight(self.sessions.values())
        for connection in list(self.connections):
            connection.disconnect(Reason.SERVER_SHUTTING_DOWN, "")

    # Sessions

    def discard(self, session: Session) -> None:
        """The session ends."""
        session_end.discard(self, session)

    def expire(self, session: Session, after_s: float) -> None:
        """End the session of a client that is not connected, unless it comes in time."""
        session_end.expire(self, session, after_s)

    # Retained messages

    def _purge(self, now: float) -> None:
        retained = self.retained
        for topic in retained.take_expired(now, MAX_PURGED):
            retained.remove(topic)
            self.durability.store_retained(topic, None)
        retained.tombstones.purge(now, MAX_PURGED)
        next_at = min(retained.expires_at, retained.tombstones.ends_at)
        # What is over now, and is there still, is the next turn's.
        self.purge_at = now if next_at <= now else max(now + PURGE_S, next_at)
        age_s = self.durability.bounds.age_s
        if age_s:
            self.purge_at = min(self.purge_at, now + age_s / AGE_STEPS)
            for session in list(self.sessions.values()):
                drop_aged_stored(self, session, now - age_s)
