"""Sessions of clients that go from one mobile broker to another, as a fixed broker knows them.

It is told of each client with a session that connects to a mobile broker (HERE), and so knows which of them
has the session. One whose client is away is handed to it and is a session of this broker's own from then on,
which the next mobile broker gets that has the client (`roaming.py`). What another one still has is asked for
(GIVE); of one that cannot be reached, when it is back. A mobile broker is believed only of clients whose user
it may bring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from hedgerow.broker.owners import owner_of
from hedgerow.broker.pool import Pool
from hedgerow.broker.session import Session
from hedgerow.message import Message
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.events import MissedWhileAway, Reborn, RoamingTold
from hedgerow.mobility.delegation.publications import Roaming, RoamingStep
from hedgerow.mobility.events import SessionHeld, SessionLeft
from hedgerow.mobility.roamers import Roamer, Roamers
from hedgerow.mobility.roaming import (
    MAX_STAGED_BYTES,
    Giving,
    Noted,
    Taking,
    Waited,
    merge,
    offers,
    size_of,
    subscribe_all,
    subscriptions_of,
    take_offer,
    waiting_in,
)
from hedgerow.mobility.sessions import when_readable
from hedgerow.mqtt.reasons import Reason
from hedgerow.topics import TopicTree

if TYPE_CHECKING:
    from hedgerow.mobility.fixed import FixedNode

PART = "roaming"  # under which the store keeps which sessions are held
LOOK_S = 0.2  # between two looks at those for whom somebody waits
SETTLING_S = 60.0  # after a start, until all mobile brokers have told which sessions they have
MIN_STAGED_BYTES = 16 * 1024 * 1024  # An owner gets what it leaves free of `MAX_STAGED_BYTES`.
# Whatever is brought goes in front of what waits, which is taken out for that and put back. So one small
# packet can cost a look at a hundred thousand messages.
MERGED_PER_S = 10_000.0  # messages, for one owner. The next one waits for it.
MANY_MERGED = 1_000  # With fewer nobody waits.


class HeldSessions:
    def __init__(self, node: FixedNode) -> None:
        self._node = node
        self._broker = node.broker
        self._machine = node.machine
        self._numbers = count(1)
        self._roamers = Roamers()
        self._staged = Pool(MAX_STAGED_BYTES, MIN_STAGED_BYTES, 1)
        self._merges_at: dict[str, float] = {}  # by owner, since many were merged: when the next may be
        self._waiting: set[str] = set()
        """Clients for whom a mobile broker waits, or that have something to be brought to one."""
        self._look_at = float("inf")
        self._started_at = self._broker.now
        for client_id in self._broker.kept_by(PART):
            session = self._broker.sessions.get(client_id)
            if session is None:
                self._broker.durability.keep(PART, client_id, None)
            else:
                roamer = Roamer(client_id, session.username, session.owner or "", owner="", is_doubtful=True)
                self._roamers.add(roamer)

    @property
    def deadline(self) -> float:
        return self._look_at

    def handle_timer(self, now: float) -> None:
        if self._look_at <= now:
            self._look_at = now + LOOK_S if self._waiting else float("inf")
            for client_id in list(self._waiting):
                roamer = self._roamers.get(client_id)
                if roamer is None:
                    self._waiting.discard(client_id)
                else:
                    self._advance(roamer)

    def is_at_both(self, client_id: str, first: str, second: str) -> bool:
        """Has the same client been at these two mobile brokers?"""
        return self._roamers.is_at_both(client_id, first, second)

    def _session_of(self, roamer: Roamer) -> Session | None:
        session = self._broker.sessions.get(roamer.client_id)
        is_guest = session is not None and self._node.guests.callback_of(session) is not None
        return None if is_guest else session

    def _tell(
        self, mobile_id: str, roamer: Roamer, step: RoamingStep, number: int, is_more: bool = False
    ) -> None:
        callback = addresses.of_client(roamer.client_id, mobile_id)
        self._machine.roam(mobile_id, Roaming(callback, step, number, None, is_more), self._broker.now)
        self._node.has_work = True

    # What mobile brokers say

    def told(self, event: RoamingTold) -> None:
        body, mobile_id = event.body, event.peer
        client_id = addresses.client_id_of(body.callback) or ""
        if body.step in (RoamingStep.HERE, RoamingStep.OFFER):
            roamer = self._find(mobile_id, client_id, body.username)
            if roamer is None:
                answer = Roaming(body.callback, RoamingStep.NONE, body.number)
                self._machine.roam(mobile_id, answer, self._broker.now)
                return
            self._note_claim(mobile_id, roamer, body)
        elif (roamer := self._roamers.get(client_id)) is not None:
            self._note_answer(mobile_id, roamer, body)

    def _note_claim(self, mobile_id: str, roamer: Roamer, body: Roaming) -> None:
        if body.step == RoamingStep.HERE:
            self._handle_here(mobile_id, roamer, body)
        else:
            self._handle_offer(mobile_id, roamer, body)

    def _note_answer(self, mobile_id: str, roamer: Roamer, body: Roaming) -> None:
        match body.step:
            case RoamingStep.NONE:
                self._handle_none(mobile_id, roamer, body.number)
            case RoamingStep.READY:
                self._handle_ready(mobile_id, roamer, body.number)
            case RoamingStep.END:
                self._handle_end(mobile_id, roamer, body)
            case RoamingStep.KEPT:
                self._handle_kept(mobile_id, roamer, body.number)

    def _find(self, mobile_id: str, client_id: str, username: str | None) -> Roamer | None:
        """None: it may not bring this client, or has another one of the same id."""
        roamer = self._roamers.get(client_id)
        if not self._node.may_bring(mobile_id, username):
            return None
        if roamer is not None:
            return roamer if roamer.username == username else None
        session = self._broker.sessions.get(client_id)
        if session is not None and self._node.guests.callback_of(session) is None:
            return None  # It is this broker's own, and nobody has brought it.
        roamer = Roamer(client_id, username, self._machine.whose(mobile_id))
        if not self._roamers.has_room(roamer):
            return None
        self._roamers.add(roamer)
        return roamer

    def _handle_here(self, mobile_id: str, roamer: Roamer, body: Roaming) -> None:
        roamer.heard[mobile_id] = body.number
        roamer.been_at.add(mobile_id)
        giving = roamer.giving
        others = {roamer.owner, roamer.claimer[0] if roamer.claimer else None, giving.to if giving else None}
        roamer.asked.discard(mobile_id)
        took = self._stop_taking(mobile_id, roamer)
        if giving is not None and (giving.to == mobile_id or not self._machine.is_linked(giving.to)):
            self._take_back(roamer)
        if (took and roamer.is_fresh) or body.is_more:
            # It has all of it itself, or wants nothing of it.
            self._take_back(roamer)
            self._discard(roamer)
            roamer.owner = mobile_id
        for other in others - {None, "", mobile_id}:
            assert other is not None
            if roamer.giving is None or roamer.giving.to != other:
                self._ask(other, roamer, is_over=body.is_more)
        roamer.claimer, roamer.written = (mobile_id, body.number), self._machine.written(mobile_id)
        self._advance(roamer)

    def _ask(self, mobile_id: str, roamer: Roamer, is_over: bool = False) -> None:
        if mobile_id in roamer.asked:
            return
        roamer.asked.add(mobile_id)
        self._node.send_off(addresses.of_client(roamer.client_id, mobile_id))
        self._tell(mobile_id, roamer, RoamingStep.GIVE, roamer.heard.get(mobile_id, 0), is_over)

    def _handle_none(self, mobile_id: str, roamer: Roamer, number: int) -> None:
        giving = roamer.giving
        if giving is not None and giving.to == mobile_id and giving.number == number:
            self._take_back(roamer)
            roamer.owner = ""
        else:
            roamer.asked.discard(mobile_id)
            self._stop_taking(mobile_id, roamer)
            if roamer.owner == mobile_id:
                roamer.owner = None
        if roamer.claimer is not None and roamer.claimer[0] == mobile_id:
            roamer.claimer = None
        self._advance(roamer)
        self._forget_if_done(roamer)

    # Taking

    def _handle_offer(self, mobile_id: str, roamer: Roamer, body: Roaming) -> None:
        taking = roamer.taking.get(mobile_id)
        if taking is None or taking.number != body.number:
            self._stop_taking(mobile_id, roamer)
            taking = roamer.taking[mobile_id] = Taking(body.number)
        take_offer(taking, body)
        self._begin(mobile_id, roamer, taking)

    def _begin(self, mobile_id: str, roamer: Roamer, taking: Taking) -> None:
        """As soon as nothing of it is on its way from here, and its client is not here as a guest."""
        guest = self._broker.sessions.get(roamer.client_id)
        if guest is not None and self._session_of(roamer) is None:
            self._node.send_off(addresses.of_client(roamer.client_id, mobile_id))
            guest = self._broker.sessions.get(roamer.client_id)
        is_in_the_way = guest is not None and self._session_of(roamer) is None
        if not taking.is_ready or taking.is_open:
            return
        self._wait(roamer)
        if roamer.giving is not None or is_in_the_way:
            return
        if self._open(roamer, taking):
            taking.is_open = True
            self._tell(mobile_id, roamer, RoamingStep.READY, taking.number)
        else:
            self._stop_taking(mobile_id, roamer)
            self._tell(mobile_id, roamer, RoamingStep.NONE, taking.number)

    def _open(self, roamer: Roamer, taking: Taking) -> bool:
        """The session that takes it, subscribed to all that it is."""
        broker, session = self._broker, self._session_of(roamer)
        if session is None:
            owner = owner_of(taking.username, "") if taking.username is not None else roamer.whose
            if not broker.owners.may_open(owner, len(broker.sessions)):
                return False
            session = broker.create_session(roamer.client_id, taking.username)
            broker.owners.add(session, owner)
            broker.owners.weigh(session)
            session.expiry_s = min(taking.expiry_s, broker.limits.session_expiry_s)
            session.durable = broker.durability.enabled
            broker.durability.store_session(session)
            broker.durability.keep(PART, roamer.client_id, "held")
            roamer.is_fresh = True
        subscribe_all(broker, session, taking.subscriptions)
        broker.expire(session, min(taking.expiry_s, broker.limits.session_expiry_s))
        return True

    def missed(self, event: MissedWhileAway) -> None:
        if len(event.event.callbacks) != 1:
            return
        (callback, qos), body = event.event.callbacks[0], event.event
        roamer = self._roamers.get(addresses.client_id_of(callback) or "")
        taking = roamer.taking.get(event.peer) if roamer is not None else None
        if roamer is None or taking is None or addresses.owner_of(callback) != event.peer:
            return
        topic = body.message.topic
        if not self._node.may_carry(event.peer, topic):
            self._machine.refuse(event.peer, topic, f"no right to read or to publish to {topic!r}")
            return
        size = size_of(body.message)
        if not self._staged.has_room(roamer.whose, size):
            self._machine.stats.overflowed += 1
            return
        self._staged.change(roamer.whose, size)
        taking.bytes += size
        body.message.expire_from(self._broker.now)
        taking.missed.append((body.message, qos, body.is_again))

    def _stop_taking(self, mobile_id: str, roamer: Roamer) -> bool:
        taking = roamer.taking.pop(mobile_id, None)
        if taking is not None:
            self._staged.change(roamer.whose, -taking.bytes)
        return taking is not None

    def _handle_end(self, mobile_id: str, roamer: Roamer, body: Roaming) -> None:
        taking = roamer.taking.get(mobile_id)
        if taking is None or taking.number != body.number:
            return
        for message_id in body.had:
            roamer.had.add(message_id)
        if roamer.giving is not None:
            # What this one has goes there behind what is on its way.
            taking.is_ended = True
            return
        taking.is_ended = True
        self._finish(mobile_id, roamer, taking)

    def _finish(self, mobile_id: str, roamer: Roamer, taking: Taking) -> None:
        if not self._may_merge(roamer):
            self._wait(roamer)
            return
        session = self._session_of(roamer)
        if session is None and self._open(roamer, taking):
            session = self._session_of(roamer)
        if session is None:
            return
        taking.is_stored = True
        when_readable(self._broker, session, partial(self._store, mobile_id, roamer, session, taking))

    def _may_merge(self, roamer: Roamer) -> bool:
        if self._merges_at.get(roamer.whose, 0.0) > self._broker.now:
            return False
        self._merges_at.pop(roamer.whose, None)
        return True

    def _note_merged(self, roamer: Roamer, count: int) -> None:
        if count > MANY_MERGED:
            self._merges_at[roamer.whose] = self._broker.now + count / MERGED_PER_S

    def _store(self, mobile_id: str, roamer: Roamer, session: Session, taking: Taking) -> None:
        """All that it has given, in front of what waits."""
        if roamer.taking.get(mobile_id) is not taking or self._session_of(roamer) is not session:
            return
        self._node.has_work = True
        missed = self._merge(mobile_id, roamer, session, taking)
        self._stop_taking(mobile_id, roamer)
        roamer.asked.discard(mobile_id)
        roamer.is_fresh = False
        if roamer.owner in (mobile_id, None):
            roamer.owner = ""
        if session.connection is None:
            self._broker.expire(session, min(taking.expiry_s, self._broker.limits.session_expiry_s))
        self._tell(mobile_id, roamer, RoamingStep.KEPT, taking.number)
        self._node.note(SessionHeld(roamer.client_id, mobile_id, missed))
        self._advance(roamer)

    def _merge(self, mobile_id: str, roamer: Roamer, session: Session, taking: Taking) -> int:
        """What was brought here under another id than its broker has is known by both."""
        waiting = {message.id for message, _, _ in waiting_in(self._broker, session)}

        def is_here(waited: Waited) -> bool:
            assert waited[0].id is not None
            given = self._machine.as_given(mobile_id, waited[0].id)
            return given != waited[0].id and given in waiting

        missed = [each for each in taking.missed if not is_here(each)]
        self._staged.change(roamer.whose, -taking.bytes)
        taking.bytes, taking.missed = 0, []
        self._note_merged(roamer, len(waiting) + len(missed))
        return merge(self._broker, session, missed, roamer.had)

    def _go_on_taking(self, roamer: Roamer) -> None:
        for other, taking in list(roamer.taking.items()):
            if taking.is_ended:
                if not taking.is_stored:
                    self._finish(other, roamer, taking)
            else:
                self._begin(other, roamer, taking)

    # Whoever waits for it

    def _advance(self, roamer: Roamer) -> None:
        """Give it to where its client is, as soon as all who can be reached have given what they have."""
        self._waiting.discard(roamer.client_id)
        if roamer.giving is not None:
            self._go_on(roamer)
            return
        self._go_on_taking(roamer)
        if self._waits(roamer):
            self._wait(roamer)
        elif roamer.claimer is not None:
            self._serve_claimer(roamer, *roamer.claimer)
        elif roamer.owner and self._session_of(roamer) is not None:
            # It came late: its client is there by now.
            if self._machine.is_linked(roamer.owner):
                self._give(roamer, roamer.owner)
            else:
                self._wait(roamer)

    def _wait(self, roamer: Roamer) -> None:
        self._waiting.add(roamer.client_id)
        self._look_at = min(self._look_at, self._broker.now + LOOK_S)

    def _waits(self, roamer: Roamer) -> bool:
        return any(self._machine.is_linked(each) for each in (*roamer.asked, *roamer.taking))

    def _serve_claimer(self, roamer: Roamer, mobile_id: str, number: int) -> None:
        session = self._session_of(roamer)
        for other, taking in roamer.taking.items():
            # It cannot be reached: what it has given is given on, the rest when it is back.
            roamer.asked.add(other)
            if session is not None:
                known = self._machine.waiting_for(other, addresses.of_client(roamer.client_id, other))
                taking.missed += _wanted(session, known)
                self._merge(other, roamer, session, taking)
        if session is not None:
            self._give(roamer, mobile_id)
            return
        roamer.owner, roamer.claimer = mobile_id, None
        callback, is_more = addresses.of_client(roamer.client_id, mobile_id), self._may_have_more(roamer)
        body = Roaming(callback, RoamingStep.NONE, number, is_more=is_more, written=roamer.written)
        self._machine.roam(mobile_id, body, self._broker.now)
        self._node.has_work = True

    # Giving

    def _give(self, roamer: Roamer, mobile_id: str) -> None:
        session = self._session_of(roamer)
        assert session is not None
        session.will = None  # The client lives.
        if session.connection is not None:
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "")
            if self._session_of(roamer) is not session:
                return
        callback = addresses.of_client(roamer.client_id, mobile_id)
        wanted = subscriptions_of(session, callback)
        roamer.giving = Giving(mobile_id, next(self._numbers), wanted)
        for body in offers(callback, roamer.giving, session, self._broker.now):
            self._machine.roam(mobile_id, body, self._broker.now)
        self._node.has_work = True

    def _handle_ready(self, mobile_id: str, roamer: Roamer, number: int) -> None:
        giving, session = roamer.giving, self._session_of(roamer)
        if giving is None or (giving.to, giving.number) != (mobile_id, number) or giving.is_open:
            return
        if session is None:
            return
        giving.is_open = True
        self._broker.set_away(session, True)
        when_readable(self._broker, session, partial(self._read, roamer, session, giving))

    def _read(self, roamer: Roamer, session: Session, giving: Giving) -> None:
        if roamer.giving is not giving or self._session_of(roamer) is not session:
            return
        mobile_id = giving.to
        may_read = self._node.may_read
        waiting = waiting_in(self._broker, session)
        giving.left = deque(
            (message, qos, is_again or roamer.is_doubtful)
            for message, qos, is_again in waiting
            if may_read(mobile_id, message.topic)
        )
        self._go_on(roamer)

    def _go_on(self, roamer: Roamer) -> None:
        """As much as the stream has room for."""
        giving, now = roamer.giving, self._broker.now
        assert giving is not None
        if giving.left is None or giving.is_ended:
            return
        callback = addresses.of_client(roamer.client_id, giving.to)
        while giving.left and self._machine.miss(giving.to, callback, giving.left[0], now):
            giving.left.popleft()
        self._node.has_work = True
        if giving.left:
            self._wait(roamer)
            return
        giving.is_ended = True
        is_more = self._may_have_more(roamer)
        body = Roaming(callback, RoamingStep.END, giving.number, is_more=is_more, had=tuple(roamer.had))
        self._machine.roam(giving.to, body, now)

    def _handle_kept(self, mobile_id: str, roamer: Roamer, number: int) -> None:
        giving = roamer.giving
        if giving is None or (giving.to, giving.number) != (mobile_id, number):
            return
        roamer.giving, roamer.had = None, Noted()
        self._discard(roamer)
        roamer.owner = mobile_id
        self._node.note(SessionLeft(roamer.client_id, mobile_id))
        if roamer.claimer is not None and roamer.claimer[0] == mobile_id:
            roamer.claimer = None
        elif roamer.claimer is not None:
            self._ask(mobile_id, roamer)
        self._go_on_taking(roamer)
        self._advance(roamer)

    def _put_back(self, session: Session, wanted: list[Waited]) -> None:
        waiting = waiting_in(self._broker, session)
        merge(self._broker, session, [*waiting, *wanted])

    def _may_have_more(self, roamer: Roamer) -> bool:
        """May another mobile broker have something of it, which this one does not know after a start?"""
        is_new = self._broker.now < self._started_at + SETTLING_S
        return is_new or bool(roamer.asked or roamer.taking)

    def _take_back(self, roamer: Roamer, left: Iterable[tuple[Message, bool]] = ()) -> None:
        """Whom it was given to cannot be reached, or does not want it. `left`: what that one has not handled,
        and whether it may have."""
        giving, session = roamer.giving, self._session_of(roamer)
        roamer.giving = None
        if giving is None or session is None:
            return
        if giving.is_open:
            roamer.is_doubtful = True
            callback = addresses.of_client(roamer.client_id, giving.to)
            known = [*left, *self._machine.waiting_for(giving.to, callback)]
            self._broker.set_away(session, False)
            wanted = _wanted(session, known)
            when_readable(self._broker, session, partial(self._put_back, session, wanted))
        self._go_on_taking(roamer)

    def _discard(self, roamer: Roamer) -> None:
        session = self._session_of(roamer)
        roamer.is_doubtful = roamer.is_fresh = False
        self._broker.durability.keep(PART, roamer.client_id, None)
        if session is None:
            return
        roamer.is_elsewhere = True  # Its session here ends, and it does not.
        session.will = None
        self._broker.owners.weigh(session)
        if session.connection is not None:
            session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "")
        if self._broker.sessions.get(roamer.client_id) is session:
            self._broker.discard(session)
        roamer.is_elsewhere = False

    # Others come and go

    def connected(self, session: Session) -> None:
        """Its client has come to this broker itself."""
        roamer = self._roamers.get(session.client_id)
        if roamer is None or roamer.username != session.username:
            return
        self._take_back(roamer)
        others = {roamer.owner, roamer.claimer[0] if roamer.claimer else None}
        roamer.owner, roamer.claimer = "", None
        for other in others - {None, ""}:
            assert other is not None
            self._ask(other, roamer)
        self._advance(roamer)

    def discarded(self, session: Session) -> None:
        roamer = self._roamers.get(session.client_id)
        if roamer is None or roamer.is_elsewhere or self._session_of(roamer) is not session:
            return
        self._broker.durability.keep(PART, session.client_id, None)
        roamer.giving = None
        if roamer.owner == "":
            roamer.owner = None
        self._forget_if_done(roamer)

    def reborn(self, event: Reborn) -> None:
        """This mobile broker or this broker has forgotten what was on its way."""
        mobile_id = event.mobile_broker
        left = [(message, True) for message in event.left]
        for roamer in list(self._roamers):
            roamer.heard.pop(mobile_id, None)
            if self._stop_taking(mobile_id, roamer) and roamer.owner == mobile_id:
                roamer.owner, roamer.is_fresh = "", False
            if roamer.giving is not None and roamer.giving.to == mobile_id:
                self._take_back(roamer, left)
                roamer.owner = ""
            if roamer.claimer is not None and roamer.claimer[0] == mobile_id:
                roamer.claimer = None  # It says so again.
            if mobile_id in roamer.asked:
                self._tell(mobile_id, roamer, RoamingStep.GIVE, 0)
            self._advance(roamer)

    def forgotten(self, mobile_id: str) -> None:
        """It has taken its leave, or is not expected any more."""
        for roamer in list(self._roamers):
            self._stop_taking(mobile_id, roamer)
            roamer.heard.pop(mobile_id, None)
            roamer.been_at.discard(mobile_id)
            roamer.asked.discard(mobile_id)
            if roamer.giving is not None and roamer.giving.to == mobile_id:
                self._take_back(roamer)
                roamer.owner = ""
            if roamer.claimer is not None and roamer.claimer[0] == mobile_id:
                roamer.claimer = None
            if roamer.owner == mobile_id:
                roamer.owner = "" if self._session_of(roamer) is not None else None
            self._advance(roamer)
            self._forget_if_done(roamer)

    def _forget_if_done(self, roamer: Roamer) -> None:
        if not roamer.is_known_somewhere and self._session_of(roamer) is None:
            self._roamers.remove(roamer)


def _wanted(session: Session, known: Iterable[tuple[Message, bool]]) -> list[Waited]:
    """Of these events, those that its client has subscribed to."""
    found: list[Waited] = []
    held: TopicTree[str, int] = TopicTree()
    for name, record in (session.subscriptions or {}).items():
        held.set(name, name, record.subscription.qos)
    for message, is_again in known:
        qos = min(max((qos for _, qos in held.match(message.topic)), default=0), message.qos)
        if qos:
            found.append((message, qos, is_again))
    return found
