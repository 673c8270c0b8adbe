"""Clients of a mobile broker that come from another one, or go to another one.

For each client with a session that connects here, the fixed broker is told so (HERE): whatever is kept for it
elsewhere comes. Until it has, or there is nothing (NONE), what is for the client at QoS 1 and 2 waits, so
that what it missed is in front of it. A client that stays away has its session handed to the fixed broker,
which keeps it for whichever mobile broker comes by: `roaming.py` has the steps of that, `held_sessions.py`
the fixed broker's side.

What the client gets here while more may come from elsewhere is noted by its id (`given.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from functools import partial
from itertools import count, islice
from typing import Protocol

from hedgerow.broker.broker import Broker
from hedgerow.broker.deliveries import pump
from hedgerow.broker.handle_subscribe import unsubscribe_for
from hedgerow.broker.session import Channel, Session
from hedgerow.message import MessageId
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.events import MissedWhileAway, RoamingTold
from hedgerow.mobility.delegation.mobile import MobileSide
from hedgerow.mobility.delegation.publications import Roaming, RoamingStep
from hedgerow.mobility.events import NodeEvent, SessionCame, SessionLeft
from hedgerow.mobility.given import Claim, GivenHere
from hedgerow.mobility.roaming import (
    MAX_STAGED_BYTES,
    Giving,
    Taking,
    mark,
    may_roam,
    merge,
    offers,
    size_of,
    subscribe_all,
    subscriptions_of,
    take_offer,
    waiting_in,
)
from hedgerow.mobility.sessions import when_readable
from hedgerow.mqtt.outbox import Outbox
from hedgerow.mqtt.reasons import Reason

AWAY_S = 1.0  # So long a client is away before its session goes to the fixed broker.
RESTORED_S = 5.0  # The same, after this broker has started: all of its clients are away then.
AGAIN_S = 1.0  # until it is looked at again, when there is no fixed broker
CLAIM_S = 3.0  # So long what is for a client waits for what it missed.
MAX_NOTED = 10_000  # of what waits for one that is given it before what it missed is known


class RoamersHome(Protocol):
    """The mobile broker whose clients they are."""

    broker: Broker
    machine: MobileSide
    has_work: bool

    @property
    def is_moving(self) -> bool:
        """From one fixed broker to another."""

    def keeps(self, session: Session) -> bool:
        """Is its client sent to the fixed broker?"""

    def sync_delegated(self) -> None:
        """What has changed of what is delegated holds from now on."""

    def deliver_all(self) -> None:
        """All that is matched, to whom it is for."""

    def note(self, event: NodeEvent) -> None: ...


class RoamingClients:
    def __init__(self, node: RoamersHome) -> None:
        self.is_known = False
        """The fixed broker takes sessions, and gives them."""
        self._node = node
        self._broker = node.broker
        self._numbers = count(1)
        self._claims: dict[str, Claim] = {}  # by client id, as all of these
        self._given = GivenHere()
        self._takings: dict[str, Taking] = {}
        self._staged_bytes = 0  # of all of them
        self._givings: dict[str, Giving] = {}
        self._due: dict[str, float] = {}
        self._told: set[str] = set()
        """The fixed broker knows that they are this one's."""
        self._untold: dict[str, bool] = {}
        """Of whom it is to be told that they are here, when there is a link; and whether they began anew."""
        self._refused: set[str] = set()
        """It does not take them, until they connect again."""
        self._restored = {session.client_id for session in node.broker.sessions.values()}
        """Of an earlier life, or whose coming here nobody has confirmed: what waits for them may have come to
        them elsewhere."""
        self._look_at = float("inf")
        self._is_clean = self._is_fresh = False
        self._started_at = node.broker.now

    @property
    def deadline(self) -> float:
        return self._look_at

    @property
    def is_giving(self) -> bool:
        """Is one on its way to the fixed broker? It should not be left meanwhile."""
        return bool(self._givings)

    @property
    def watched(self) -> bool:
        """Is it noted of a client what it gets?"""
        return len(self._given) > 0

    def is_busy(self, client_id: str) -> bool:
        return client_id in self._claims or client_id in self._takings or client_id in self._givings

    def _session_of(self, client_id: str) -> Session | None:
        session = self._broker.sessions.get(client_id)
        return session if session is not None and session.role.is_movable else None

    def _wait(self, client_id: str, until: float) -> None:
        self._due[client_id] = until
        self._look_at = min(self._look_at, until)

    def _tell(self, client_id: str, step: RoamingStep, number: int, is_more: bool = False) -> None:
        session = self._broker.sessions.get(client_id)
        username = session.username if session is not None and step == RoamingStep.HERE else None
        body = Roaming(self._callback(client_id), step, number, username, is_more)
        self._node.machine.roam(body, self._broker.now)
        self._node.has_work = True

    def _callback(self, client_id: str) -> str:
        return addresses.of_client(client_id, self._broker.node_id)

    # Clients come and go

    def arriving(self, client_id: str, is_clean: bool) -> None:
        """The client that is `connected` next has asked for a session, or to begin anew."""
        self._is_clean = is_clean
        self._is_fresh = is_clean or client_id not in self._broker.sessions

    def connected(self, connection: Channel) -> None:
        session = connection.connected_session()
        client_id = session.client_id
        self._due.pop(client_id, None)
        self._refused.discard(client_id)
        self._restored.discard(client_id)
        before = self._claims.pop(client_id, None)
        giving = self._givings.pop(client_id, None)
        if not (self.is_known or self._is_starting) or not self._may_roam(session):
            return
        was_given = giving is not None and giving.is_open
        was_fresh = before is not None and before.is_fresh
        claim = self._claim(client_id, self._is_clean, self._is_fresh or was_given or was_fresh)
        if giving is not None and was_given:
            claim.backup = giving.subscriptions
        elif before is not None:
            claim.backup = before.backup
        self._hold(session, claim)

    def _may_roam(self, session: Session) -> bool:
        return may_roam(session) and addresses.is_nameable(session.client_id, self._broker.node_id)

    @property
    def _is_starting(self) -> bool:
        """There has been no fixed broker yet, but soon there may be."""
        return self._node.machine.current is None and self._broker.now < self._started_at + CLAIM_S

    def _claim(self, client_id: str, is_clean: bool, is_fresh: bool) -> Claim:
        claim = self._claims[client_id] = Claim(next(self._numbers), self._broker.now + CLAIM_S, is_fresh)
        self._given.begin(self._callback(client_id))
        self._untold[client_id] = is_clean
        self._tell_who_is_here()
        return claim

    def _tell_who_is_here(self) -> None:
        """Not before there is a link: who is here now may be elsewhere by then."""
        if not self._untold or not self.is_known or not self._is_linked:
            return
        untold, self._untold = self._untold, {}
        for client_id, is_clean in untold.items():
            claim, session = self._claims.get(client_id), self._session_of(client_id)
            if claim is not None and session is not None and session.connection is not None:
                self._told.add(client_id)
                self._tell(client_id, RoamingStep.HERE, claim.number, is_clean)

    @property
    def _is_linked(self) -> bool:
        current = self._node.machine.current
        return current is not None and current.stream.is_open

    def _hold(self, session: Session, claim: Claim) -> None:
        """What is for it waits, unless the fixed broker is lost, which is to say what was before that."""
        current = self._node.machine.current
        for delivery in session.outbox.in_flight.values() if session.outbox is not None else ():
            self._given.add(self._callback(session.client_id), self._broker.identify_late(delivery.message))
        if current is None or not current.is_lost:
            outbox = session.outbox = session.outbox or Outbox(self._broker.limits.in_flight)
            claim.window, outbox.window = outbox.window, 0
            self._look_at = min(self._look_at, claim.until)
        else:
            subscribe_all(self._broker, session, claim.backup)
            self._note_waiting(session)

    def _release(self, client_id: str, claim: Claim) -> None:
        session = self._session_of(client_id)
        connection = session.connection if session is not None else None
        if claim.window is None or session is None or connection is None or session.outbox is None:
            return
        session.outbox.window, claim.window = claim.window, None
        pump(self._broker, connection)

    def disconnected(self, connection: Channel) -> None:
        session = connection.session
        if session is None:
            return
        claim = self._claims.get(session.client_id)
        if claim is not None:
            claim.window = None
        self._untold.pop(session.client_id, None)
        if may_roam(session):
            self._wait(session.client_id, self._broker.now + AWAY_S)

    def discarded(self, session: Session) -> None:
        client_id = session.client_id
        self._claims.pop(client_id, None)
        self._stop_taking(client_id)
        self._givings.pop(client_id, None)
        self._due.pop(client_id, None)
        self._untold.pop(client_id, None)
        self._given.end(self._callback(client_id))
        self._refused.discard(client_id)
        self._restored.discard(client_id)
        if client_id in self._told:
            self._told.discard(client_id)
            self._tell(client_id, RoamingStep.NONE, 0)

    # What they get here

    def _note_waiting(self, session: Session) -> None:
        """It gets this now."""
        for message, _, _ in islice(waiting_in(self._broker, session), MAX_NOTED):
            assert message.id is not None
            self._given.add(self._callback(session.client_id), message.id)

    def note_given(self, callbacks: Collection[str], message_id: MessageId | None, number: int = 0) -> None:
        """These clients get it here. `number`: of the fixed broker's event; 0: it is this broker's own."""
        for callback in self._given.among(callbacks):
            assert message_id is not None
            self._given.add(callback, message_id)
            client_id = addresses.client_id_of(callback) or ""
            taking, claim = self._takings.get(client_id), self._claims.get(client_id)
            if number and taking is not None and taking.is_fresh:
                taking.arrived.setdefault(message_id, number)
            elif number and claim is not None and claim.is_fresh and claim.window is not None:
                claim.arrived[message_id] = number

    def may_have_had(self, callback: str) -> bool:
        """Of what the fixed broker writes for it: it is not known where it was when that was written."""
        claim = self._claims.get(addresses.client_id_of(callback) or "") if self._claims else None
        return claim is not None and claim.is_fresh and claim.window is None

    # The fixed broker

    def introduced(self, is_known: bool) -> None:
        """To a fixed broker that knows nothing of this one, or of which this one knows nothing."""
        now = self._broker.now
        self.is_known = is_known
        self._takings.clear()
        self._staged_bytes = 0
        self._told.clear()
        self._untold.clear()
        self._refused.clear()
        givings, self._givings = self._givings, {}
        for client_id, giving in givings.items():
            session = self._session_of(client_id)
            if session is not None and giving.is_open:
                # It may have gone on from there.
                subscribe_all(self._broker, session, giving.subscriptions)
                self._restored.add(client_id)
            self._wait(client_id, now)
        if not is_known:
            for client_id, claim in self._claims.items():
                self._release(client_id, claim)
            self._claims.clear()
            self._given.clear()
            return
        for session in list(self._broker.sessions.values()):
            if self._may_roam(session):
                self._introduce(session, now)

    def _introduce(self, session: Session, now: float) -> None:
        client_id = session.client_id
        if session.connection is None:
            self._wait(client_id, self._due.get(client_id, now + RESTORED_S))
        else:
            before = self._claims.get(client_id)
            claim = self._claim(client_id, is_clean=False, is_fresh=before is not None and before.is_fresh)
            if before is not None:
                claim.backup, claim.window, claim.until = before.backup, before.window, before.until

    def told(self, event: RoamingTold) -> None:
        body, client_id = event.body, addresses.client_id_of(event.body.callback) or ""
        match body.step:
            case RoamingStep.NONE:
                self._handle_none(client_id, body)
            case RoamingStep.OFFER:
                self._handle_offer(client_id, body)
            case RoamingStep.END:
                self._handle_end(client_id, body, event.written)
            case RoamingStep.GIVE:
                self._handle_give(client_id, body)
            case RoamingStep.READY:
                self._handle_ready(client_id, body)
            case RoamingStep.KEPT:
                self._handle_kept(client_id, body)
        self._node.has_work = True

    def missed(self, event: MissedWhileAway) -> None:
        (callback, qos), *_ = event.event.callbacks or (("", 0),)
        taking = self._takings.get(addresses.client_id_of(callback) or "")
        if taking is not None:
            taking.until = taking.until or event.number
            size = size_of(event.event.message)
            if self._staged_bytes + size > MAX_STAGED_BYTES:
                self._node.machine.stats.overflowed += 1
                return
            self._staged_bytes += size
            taking.bytes += size
            taking.missed.append((event.event.message, qos, event.event.is_again))

    def _handle_none(self, client_id: str, body: Roaming) -> None:
        claim, giving = self._claims.get(client_id), self._givings.get(client_id)
        if claim is not None and claim.number == body.number:
            session = self._session_of(client_id)
            if session is not None:
                subscribe_all(self._broker, session, claim.backup)
                if body.is_more and claim.arrived:
                    # It was on its way before the client was here, and where that was it may have come to it.
                    before = {name for name, number in claim.arrived.items() if number <= body.written}
                    when_readable(self._broker, session, partial(mark, self._broker, session, before))
            self._end_claim(client_id, is_more=body.is_more)
        elif giving is not None and giving.number == body.number:
            del self._givings[client_id]
            self._refused.add(client_id)

    def _end_claim(self, client_id: str, is_more: bool) -> None:
        """`is_more`: another broker may have something for it that comes later."""
        claim, session = self._claims.pop(client_id, None), self._session_of(client_id)
        if not is_more:
            self._given.end(self._callback(client_id))
        elif session is not None and session.connection is not None and claim is not None:
            self._note_waiting(session)
        if claim is not None:
            self._release(client_id, claim)

    # Taking

    def _handle_offer(self, client_id: str, body: Roaming) -> None:
        session = self._session_of(client_id)
        if session is None:
            self._tell(client_id, RoamingStep.NONE, body.number)
            return
        taking = self._takings.get(client_id)
        if taking is None or taking.number != body.number:
            self._stop_taking(client_id)
            taking = self._takings[client_id] = Taking(body.number)
            self._given.begin(self._callback(client_id))
        take_offer(taking, body)
        if taking.is_ready:
            subscribe_all(self._broker, session, taking.subscriptions)
            self._node.sync_delegated()
            claim = self._claims.get(client_id)
            taking.is_fresh = claim is not None and claim.is_fresh
            for message, _, _ in waiting_in(self._broker, session) if taking.is_fresh else ():
                assert message.id is not None
                taking.arrived[message.id] = 0
            self._tell(client_id, RoamingStep.READY, taking.number)

    def _stop_taking(self, client_id: str) -> None:
        taking = self._takings.pop(client_id, None)
        if taking is not None:
            self._staged_bytes -= taking.bytes

    def _handle_end(self, client_id: str, body: Roaming, written: int) -> None:
        taking, session = self._takings.get(client_id), self._session_of(client_id)
        if taking is None or taking.number != body.number or session is None:
            return
        taking.until = taking.until or written + 1
        when_readable(self._broker, session, partial(self._finish, client_id, session, taking, body))

    def _finish(self, client_id: str, session: Session, taking: Taking, body: Roaming) -> None:
        if self._takings.get(client_id) is not taking or self._session_of(client_id) is not session:
            return
        self._node.has_work = True
        self._stop_taking(client_id)
        given = self._given.of(self._callback(client_id))
        merged = merge(self._broker, session, taking.missed, body.had, given, taking.covers)
        for message_id in (*body.had, *(message.id for message, _, _ in taking.missed)):
            assert message_id is not None
            given.add(message_id)
        self._told.add(client_id)
        self._tell(client_id, RoamingStep.KEPT, taking.number)
        self._end_claim(client_id, is_more=body.is_more)
        if session.connection is not None:
            pump(self._broker, session.connection)
        else:
            self._wait(client_id, self._broker.now + AWAY_S)
        self._node.note(SessionCame(client_id, merged))

    # Giving

    def _handle_give(self, client_id: str, body: Roaming) -> None:
        claim, session = self._claims.get(client_id), self._session_of(client_id)
        if claim is not None and claim.number > body.number:
            return  # It has come back since, and that is on its way.
        if client_id in self._givings:
            return
        if session is None or not may_roam(session):
            self._told.discard(client_id)
            self._tell(client_id, RoamingStep.NONE, body.number)
            return
        session.will = None  # The client lives, and is at another broker.
        self._broker.owners.weigh(session)
        if session.connection is not None:
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "")
        if self._broker.sessions.get(client_id) is not session:
            return
        if body.is_more:
            self._broker.discard(session)  # It has begun anew there.
        else:
            self._give(client_id, session)

    def _give(self, client_id: str, session: Session) -> None:
        current = self._node.machine.current
        if current is None:
            return
        self._due.pop(client_id, None)
        callback = self._callback(client_id)
        wanted = subscriptions_of(session, callback)
        giving = self._givings[client_id] = Giving(current.fixed_id, next(self._numbers), wanted)
        for body in offers(callback, giving, session, self._broker.now):
            self._node.machine.roam(body, self._broker.now)
        self._node.has_work = True

    def _handle_ready(self, client_id: str, body: Roaming) -> None:
        giving, session = self._givings.get(client_id), self._session_of(client_id)
        if giving is None or giving.number != body.number or giving.is_open or session is None:
            return
        giving.is_open = True
        self._node.deliver_all()
        for topic_filter in list(session.subscriptions or ()):
            unsubscribe_for(self._broker, session, topic_filter)
        when_readable(self._broker, session, partial(self._read, client_id, session, giving))

    def _read(self, client_id: str, session: Session, giving: Giving) -> None:
        if self._givings.get(client_id) is not giving:
            return
        self._node.has_work = True
        claim = self._claims.get(client_id)
        # Where a client was before that was here for a moment, it may have had what was on its way.
        is_doubtful = client_id in self._restored or (claim is not None and claim.is_fresh)
        waiting = {message.id for message, _, _ in waiting_in(self._broker, session)}
        given = self._given.of(self._callback(client_id))
        giving.had = tuple(each for each in given if each not in waiting)
        giving.left = deque(
            (message, level, is_again or is_doubtful)
            for message, level, is_again in waiting_in(self._broker, session)
        )
        self._go_on(client_id, giving)

    def _go_on(self, client_id: str, giving: Giving) -> None:
        """As much as the stream has room for."""
        machine, now = self._node.machine, self._broker.now
        callback = self._callback(client_id)
        while giving.left and machine.miss(giving.to, callback, giving.left[0], now):
            giving.left.popleft()
        if giving.left is not None and not giving.left and not giving.is_ended:
            giving.is_ended = True
            machine.roam(Roaming(callback, RoamingStep.END, giving.number, had=giving.had), now, giving.to)

    def _handle_kept(self, client_id: str, body: Roaming) -> None:
        giving, session = self._givings.get(client_id), self._session_of(client_id)
        if giving is None or giving.number != body.number:
            return
        del self._givings[client_id]
        self._told.discard(client_id)
        if session is not None and session.connection is None:
            session.will = None
            self._broker.owners.weigh(session)
            self._broker.discard(session)
        self._node.note(SessionLeft(client_id, giving.to))

    # Time

    def serve(self, now: float) -> None:
        self._tell_who_is_here()
        for client_id, giving in list(self._givings.items()):
            if giving.left:
                self._go_on(client_id, giving)
        if now < self._look_at:
            return
        for client_id, claim in self._claims.items():
            session = self._session_of(client_id)
            if claim.until <= now and claim.window is not None and session is not None:
                self._note_waiting(session)
                self._release(client_id, claim)
        for client_id in [name for name, at in self._due.items() if at <= now]:
            del self._due[client_id]
            self._look(client_id, now)
        held = (claim.until for claim in self._claims.values() if claim.window is not None)
        self._look_at = min(min(self._due.values(), default=float("inf")), min(held, default=float("inf")))

    def _look(self, client_id: str, now: float) -> None:
        """It has been away for a while."""
        session, node = self._session_of(client_id), self._node
        if session is None or session.connection is not None:
            return
        if client_id in self._refused or not self.is_known or not self._may_roam(session):
            return
        claim = self._claims.pop(client_id, None)
        if claim is not None:
            subscribe_all(self._broker, session, claim.backup)
            self._restored.add(client_id)
        is_guest = session.is_away or node.machine.is_away(self._callback(client_id))
        is_linked = self._is_linked and not node.is_moving
        if is_guest or node.keeps(session) or self.is_busy(client_id) or not is_linked:
            self._wait(client_id, now + AGAIN_S)
        else:
            self._give(client_id, session)
