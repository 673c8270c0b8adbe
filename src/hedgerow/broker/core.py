"""What a broker knows, and the few things that everybody does with it: ids, routes, timers, turns.

Whatever handles packets, publications and sessions is in modules of its own, which stand on this one;
`broker.py` puts them together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heapify, heappush
from typing import TYPE_CHECKING, Any

from hedgerow.broker.access import Access
from hedgerow.broker.durability import Durability
from hedgerow.broker.events import ConnectionFailed, Event
from hedgerow.broker.limits import Limits, LogBounds
from hedgerow.broker.owners import Owners
from hedgerow.broker.recent import Recent
from hedgerow.broker.retained import Retained
from hedgerow.broker.role import Role
from hedgerow.broker.routes import Route, SubscriptionTable
from hedgerow.broker.session import Channel, Pause, Session
from hedgerow.broker.source import Source
from hedgerow.broker.stats import Stats
from hedgerow.broker.stored import MessageLog
from hedgerow.duplicates import DuplicateLog
from hedgerow.message import Message, MessageId
from hedgerow.topics import split_shared

if TYPE_CHECKING:
    from hedgerow.broker.rest import Rest

# What one client's input may cost before others have their turn, in units of about a microsecond. A few
# bytes can ask for much: a publication to a thousand subscribers, a topic that is looked up among filters
# of "+" in every combination, a packet full of properties.
TURN_WORK = 10_000
# What all of them together may cost before the shell looks at its sockets again: a hundred clients that each
# use up a turn would be a second. Beyond it a turn is short: enough for a PINGREQ, or a few publications.
ROUND_WORK = TURN_WORK
SHORT_TURN_WORK = 500
MAX_VOID_TIMERS = 1_024  # Beside those of the connections and sessions that there are.


class BrokerCore:
    def __init__(
        self,
        node_id: str,
        epoch: int,
        now: float,
        limits: Limits | None,
        access: Access | None,
        durable: bool,
        log: MessageLog | None,
        log_bounds: LogBounds | None,
        verifies_passwords: bool,
        administrators: frozenset[str],
        begun_at: float,
    ) -> None:
        self.node_id = node_id
        self.epoch = epoch
        self.begun_at = begun_at
        self.now = now
        self.limits = limits or Limits()
        self.access = access or Access()
        self.verifies_passwords = verifies_passwords
        self.takes_empty_client_ids = True
        self.administrators = administrators  # users who may command the node, whatever the ACL says
        self.stats = Stats()
        self.duplicates = DuplicateLog()  # what has come to this node by any link
        self.subscriptions = SubscriptionTable(self.access)
        self.log = log
        self.durability = Durability(
            durable, self.stats, self.duplicates, self.subscriptions.observers, self.identify, log_bounds
        )
        self.duplicates.on_forget = self.durability.forget_seen
        self.recent = Recent()
        self.roles: dict[str, Role] = {}  # by name
        self.claimants: tuple[Role, ...] = ()  # the same, in the order in which CONNECTs are offered to them
        self.client_role: Role  # of whoever no other role claims
        self.sources: list[Source] = []  # of what the table has nothing of: see `source.py`
        self.on_established: Callable[[Any], None] | None = None
        """Called with each connection that has got its session."""
        self.reserved: list[Callable[[str], bool]] = []  # whether a topic is for parts of nodes alone
        self.commands: set[str] = set()  # topics by which clients command parts of this node
        self.kept: dict[tuple[str, str], str] = {}  # what parts had kept, by part and key, as of the start
        self.id_prefixes: dict[tuple[str, int], bytes] = {}  # by origin and epoch: ids up to their sequence
        # Of the fabric-wide message ids that begin here. No node gives so many in a second.
        self.sequence = int(begun_at * 2**24)
        self.connections: set[Channel] = set()
        self.client_count = 0  # connections of clients whose CONNECT was accepted
        self.link_count = 0  # and those to and from other brokers
        self.sessions: dict[str, Session] = {}
        self.links: dict[str, Session] = {}  # those among them that are links to other brokers
        self.owners = Owners(self.limits)
        self.retained = Retained(self.limits.retained_bytes)
        self.retained.tombstones.on_forget = partial(self.durability.store_retained, message=None)
        self.dirty: list[Channel] = []
        self.events: list[Event] = []
        self.logins: list[Any] = []  # that wait for a password to be verified (`handle_connect.Login`)
        self.work = 0
        self.turn_ends_at = 0  # when `work` is more than this
        self.round_ends_at = ROUND_WORK  # the same for all
        self.encoded_properties: tuple[Message | None, float, bytes] = (None, 0, b"")
        self.deadline = now  # when `handle_timer` is next needed
        self.purge_at = now  # when expired retained messages are next looked for
        self.undelivered: dict[str, deque[Rest]] = {}  # by topic: publications to many, see `rest.py`
        self.undelivered_bytes = 0  # of those whose publishers cannot wait
        self._pumping: deque[Channel] = deque()
        self._postponed: deque[Channel] = deque()
        self._endings: deque[Callable[[], bool]] = deque()  # see `end_later`
        # Timers are (at, tie-break, connection or session); what it was for is looked up when due. One
        # whose subject has another `timer_at` by then is void.
        self._timers: list[tuple[float, int, Channel | Session]] = []
        self._timer_count = 0
        self._assigned_client_ids = 0
        self._next_session_key = 1

    # Turns

    def begin_turn(self) -> None:
        """A client's input is about to be handled."""
        if self.work < self.round_ends_at:
            self.turn_ends_at = self.work + TURN_WORK
        else:
            self.turn_ends_at = self.work + SHORT_TURN_WORK
            self.wake_at(self.now)  # for the next round

    @property
    def turn_is_over(self) -> bool:
        return self.work > self.turn_ends_at

    def end_turn(self) -> None:
        """Whoever's turn it is has to wait, whatever is left of it."""
        self.turn_ends_at = min(self.turn_ends_at, self.work - 1)

    @property
    def round_is_over(self) -> bool:
        return self.work > self.round_ends_at

    def pump_later(self, connection: Channel) -> None:
        """There is more to send than fits into a turn."""
        connection.pumping = True
        self._pumping.append(connection)
        self.wake_at(self.now)

    def postpone(self, connection: Channel) -> None:
        """The rest of what this client asked for has to wait until others have been heard."""
        connection.pause(Pause.POSTPONED)
        self._postponed.append(connection)
        self.wake_at(self.now)

    def end_later(self, go_on: Callable[[], bool]) -> None:
        """What was begun takes more than a turn: called turn by turn, until it is True."""
        self._endings.append(go_on)
        self.wake_at(self.now)

    def take_steps(self, steps: Iterator[object]) -> bool:
        """As many as the turn has room for, one at least. Are all of them taken?"""
        return not any(self.turn_is_over for _ in steps)

    def note_failure(self, client_id: str, error: Exception) -> None:
        """Our own code failed at what concerns this client, which is not connected; others go on."""
        self.stats.connections_failed += 1
        self.events.append(ConnectionFailed("", client_id, repr(error), error))

    # Time

    def wake_at(self, at: float) -> None:
        self.deadline = min(self.deadline, at)

    @property
    def timers_held(self) -> int:
        """Void ones too."""
        return len(self._timers)

    def arm(self, at: float, subject: Channel | Session) -> None:
        """Look at the subject then, and not at the time that was set before."""
        self.wake_at(at)
        if len(self._timers) > 2 * (len(self.connections) + len(self.sessions)) + MAX_VOID_TIMERS:
            # Clients that come and go leave timers which are due in a day.
            self._timers = [timer for timer in self._timers if timer[2].timer_at == timer[0]]
            heapify(self._timers)
        subject.timer_at = at
        self._timer_count += 1
        heappush(self._timers, (at, self._timer_count, subject))

    def purge_later(self, at: float, not_before: float) -> None:
        """Something that is retained is over then."""
        self.purge_at = min(self.purge_at, max(at, not_before))
        self.wake_at(self.purge_at)

    # Topics and ids

    def is_reserved(self, topic: str) -> bool:
        """Is it one on which parts of nodes write to each other? Then no client publishes there."""
        return bool(self.reserved) and any(reserves(topic) for reserves in self.reserved)

    def find_route(self, topic: str, even_nobody: bool = True) -> Route:
        visited = self.subscriptions.visited
        route = self.subscriptions.route(topic, even_nobody)
        self.work += self.subscriptions.visited - visited
        return route

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

    # Sessions

    def assign_client_id(self) -> str:
        while True:
            self._assigned_client_ids += 1
            client_id = f"{self.node_id}-{self.epoch}-{self._assigned_client_ids}"
            if client_id not in self.sessions:
                return client_id

    def create_session(
        self, client_id: str, username: str | None, role: Role | None = None, key: int | None = None
    ) -> Session:
        session = Session(key or self._next_session_key, client_id, username, role or self.client_role)
        self._next_session_key = max(self._next_session_key, session.key) + 1
        self.sessions[client_id] = session
        self.note_role(session)
        return session

    def note_role(self, session: Session) -> None:
        """It is that of a link now, or it is not."""
        if session.role.is_link:
            self.links[session.client_id] = session
        else:
            self.links.pop(session.client_id, None)

    def add_connection(self, connection: Channel, address: str | None = None) -> None:
        """A connection is open, and has yet to say who it is; `address`: of one that came from elsewhere."""
        self.owners.opened(connection, address)
        self.stats.connections_opened += 1
        self.connections.add(connection)
        self.arm(self.now + self.limits.connect_timeout_s, connection)

    def count_connection(self, session: Session, change: int) -> None:
        if session.role.is_link:
            self.link_count += change
        else:
            self.client_count += change
            self.stats.clients_maximum = max(self.stats.clients_maximum, self.client_count)

    def set_away(self, session: Session, is_away: bool) -> None:
        """Another broker serves the client, or this one does again."""
        if session.is_away != is_away:
            session.is_away = is_away
            for topic_filter in session.subscriptions or ():
                self.subscriptions.forget_routes(split_shared(topic_filter)[1])
