"""Stamps: one fabric-wide id for what is born at a foreign broker, whichever bridges carry it away.

Bridges of several nodes (*carriers*) are at a broker F that gives no ids. A message that one of F's own
clients publishes comes to all of them, and into the fabric by several ways; so they must agree on its id.
They do by publications at F under `hedgerow/bridge/`, and they lean on one property of F: it hands all that
is published to each subscriber in one and the same order. What a carrier does from a certain publication
on, the others know from the same place in their streams.

- **Identity.** `identity`, retained, is the origin of all ids born at F. The last one published holds.
- **Who leads.** Each carrier says every `interval_s` that it is there, for which filters, and its rank: one
  more than the highest when it came. Of those whose filters match a topic the lowest rank leads it, then the
  lowest id; who comes later does not displace it. A newcomer has rank 0, which leads nothing, and says so
  before it subscribes to anything else: so the others stamp for it from its first message on.
- **Alone**, a carrier gives ids by itself and publishes no stamps.
- **The leader** gives the id at once, and publishes it with the message's fingerprint. **Others** hold the
  message until that comes; messages that are alike are matched in order. If the leader is gone, or silent
  about it for three intervals, the message falls to the next in rank. Messages of a topic keep their order.
- **Last values.** F tells those who subscribe what it retains, and that is no new message. A carrier knows
  the ids of the values that it saw, and answers a newcomer's question for them.

**Where F does not carry user properties** (MQTT 3.1.1), also what carriers publish comes to the others
without its id. The rule: who sends a message to F publishes its stamp first, on the same connection
(`note_sent`, then `take_publications`, then the message). So the stamp is everywhere before the message, and
whoever leads matches it instead of giving a new id: nothing goes round. A stamp whose message does not come
is forgotten after three intervals, and nobody waits for the stamp of another than the leader: so nothing is
lost. Its own message, if F hands it back, the sender knows by the fingerprints of what it sent, each matched
once.

A machine that stood still for two intervals may have been taken for dead, and begins as a newcomer. When the
connection ends, what is held leaves at QoS 1 and 2 with a new id: twice is better than never.

Whoever may publish under `hedgerow/bridge/` can delay messages and have them taken for others: at F that
right is for carriers alone. Memory is bounded whatever they write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from hedgerow.bridges.attendance import CARRIER_TOPIC, IDENTITY_TOPIC, INTERVAL_S, PREFIX, Attendance
from hedgerow.bridges.stamp_codec import (
    MAX_STAMPS,
    Stamp,
    decode_question,
    decode_stamps,
    encode_question,
    encode_stamps,
    fingerprint,
    fingerprint_topic,
)
from hedgerow.bridges.stamp_tables import (
    BOUNDS,
    Held,
    HeldMessages,
    LastValueIds,
    StampBounds,
    UnmatchedStamps,
)
from hedgerow.message import Message, MessageId

CONTROL_FILTER = PREFIX + "#"
STAMPS_TOPIC = PREFIX + "stamps"
QUESTION_TOPIC = PREFIX + "question/"
ANSWER_TOPIC = PREFIX + "answer/"

ECHO_S = 10.0  # How late F may hand our own message back.
MAX_RECENT = 200  # of what was sent: for a newcomer whose first word crossed it
_NEVER = float("inf")


@dataclass(slots=True)
class StampCounters:
    """What became of messages without id, and of publications under `hedgerow/bridge/`."""

    alone: int = 0
    stamped: int = 0
    """Given an id for all, as the leader."""
    matched: int = 0
    """By a stamp of another carrier, or as our own that F handed back."""
    recalled: int = 0
    """Last values whose ids were known, and what crossed our first word."""
    timed_out: int = 0
    """Given an id since the leader did not."""
    overflowed: int = 0
    """Given an id since there was no room to wait."""
    dropped: int = 0
    """Held at QoS 0 when the connection ended."""
    malformed: int = 0
    unmatched: int = 0
    """Stamps whose message did not come."""


def is_control(topic: str) -> bool:
    """Is it for `receive_control`? No bridge carries such a topic from one broker to another."""
    return topic.startswith(PREFIX)


class Stamps:
    """One carrier's part in it, through all its connections to one F.

    `carrier_id` is its own among all carriers at F, as its client id there is; `life` and `random_identity`
    (24 hex digits) are random; `filters` are those that it subscribes to at F, beside `CONTROL_FILTER`.

    On a connection: `connected`; subscribe to `CONTROL_FILTER`, without No Local; send `take_publications`;
    subscribe to the rest, without waiting in between; `receive_subscribed` when the first is answered.
    """

    def __init__(
        self,
        carrier_id: str,
        life: int,
        carries_ids: bool,
        random_identity: str,
        filters: Iterable[str] = ("#",),
        interval_s: float = INTERVAL_S,
        bounds: StampBounds = BOUNDS,
    ) -> None:
        self.attendance = Attendance(carrier_id, life, carries_ids, random_identity, filters, interval_s)
        self.counters = StampCounters()
        self._bounds = bounds
        self._carriers = self.attendance.carriers
        self._life = life
        self._carries_ids = carries_ids
        self._sequence = 0
        self._told_until = -_NEVER  # F may still tell what it retains,
        self._told: set[bytes] = set()  # of each topic once
        self._held = HeldMessages(bounds.held, bounds.held_bytes)
        self._unmatched = UnmatchedStamps(self.attendance.patience_s, bounds.unmatched)
        self._echoes = UnmatchedStamps(ECHO_S, bounds.unmatched)
        self._recent: deque[tuple[float, Stamp]] = deque(maxlen=MAX_RECENT)
        self._values = LastValueIds(bounds.values)
        self._new_stamps: list[Stamp] = []
        self._sent_stamps: list[Stamp] = []
        self._questions: list[tuple[bytes, bytes]] = []

    # What the bridge asks

    @property
    def held_count(self) -> int:
        return len(self._held)

    @property
    def unmatched_count(self) -> int:
        """Stamps that wait for their message."""
        return len(self._unmatched)

    @property
    def value_count(self) -> int:
        """Last values whose id is known."""
        return len(self._values)

    @property
    def wants_sent(self) -> bool:
        """Does `note_sent` do anything at present?"""
        return not (self._carries_ids and self._carriers.carry_ids)

    def next_run(self, count: int, now: float) -> tuple[str, int, range] | None:
        """Ids for messages without id and RETAIN, the short way: origin, epoch and sequences.

        None: give each to `receive_message`.
        """
        if self._held.count or not self.attendance.is_alone_and_awake(now):
            return None
        if not self._carries_ids and self.attendance.hears_itself:
            return None  # It may be our own.
        if len(self._unmatched):
            return None  # At QoS 1 a message may wait at F until its stamp is here, and who gave it is gone.
        first = self._sequence + 1
        self._sequence += count
        self.counters.alone += count
        return self.attendance.identity, self._life, range(first, first + count)

    def take_identified(self) -> list[tuple[Message, object]]:
        """The messages given to `receive_message`, with `id` set, and their contexts, in order."""
        return self._held.take_leaving()

    def take_publications(self) -> list[Message]:
        """What to publish at F, before anything that `note_sent` was called for."""
        attendance = self.attendance
        publications, attendance.publications = attendance.publications, []
        stamps, self._new_stamps = self._new_stamps, []
        sent, self._sent_stamps = self._sent_stamps, []
        questions, self._questions = self._questions, []
        if stamps or sent:
            payloads = encode_stamps(self._life, stamps) + encode_stamps(self._life, sent, goes_before=True)
            publications += [Message(STAMPS_TOPIC, each, 1) for each in payloads]
        for start in range(0, len(questions), MAX_STAMPS):
            payload = encode_question(self._life, questions[start : start + MAX_STAMPS])
            publications.append(Message(QUESTION_TOPIC + attendance.carrier_id, payload, 1))
        return publications

    # The connection

    def connected(self, now: float) -> None:
        self._told.clear()
        self.attendance.connected(now)
        self._answer_newcomers(now)

    def receive_subscribed(self, now: float) -> None:
        """F has answered the subscription to `CONTROL_FILTER`."""
        if self.attendance.is_connected and not self.attendance.is_settled:
            self.attendance.receive_subscribed(now)
            self._told_until = now + self.attendance.patience_s

    def subscribing(self, now: float) -> None:
        """To one more filter, on the same connection: F may tell again what it retains."""
        self._told.clear()
        self._told_until = max(self._told_until, now + self.attendance.patience_s)

    def disconnected(self) -> None:
        self.attendance.disconnected()
        for held in self._held.waiting():
            if held.message.qos:
                self.counters.timed_out += 1
                self._identify(held, self._new_id())
            else:
                self.counters.dropped += 1
                self._held.discard(held)
        # Not the echoes: F may keep them for us.
        self._unmatched.clear()
        self._recent.clear()
        for waiting in self._new_stamps, self._sent_stamps, self._questions:
            waiting.clear()

    def _wake(self, now: float) -> None:
        self.attendance.wake(now)
        self._answer_newcomers(now)

    def _answer_newcomers(self, now: float) -> None:
        """What we sent before we heard of one may have come to it, and the stamps not."""
        for newcomer in self.attendance.take_newcomers():
            since = now - self.attendance.interval_s
            self._answer(newcomer, [stamp for sent_at, stamp in self._recent if sent_at >= since])

    # Time

    @property
    def deadline(self) -> float:
        """When `handle_timer` is next needed."""
        attendance = self.attendance
        return min(attendance.deadline, self._held.due_at) if attendance.is_connected else _NEVER

    def handle_timer(self, now: float) -> None:
        attendance = self.attendance
        if not attendance.is_connected:
            return
        self._wake(now)
        for carrier_id in attendance.silent(now):
            self._carriers.forget(carrier_id)
            self._reassign(now)
        if attendance.handle_timer(now):
            self._reassign(now)
        self._answer_newcomers(now)
        while self._held.due_at <= now:
            self._pass_on(self._held.first_waiting(), now)
        self.counters.unmatched += self._unmatched.expire(now)
        self._echoes.expire(now)

    # Messages

    def receive_message(
        self, message: Message, context: object, now: float, may_be_told: bool = True
    ) -> None:
        """One that came from F without an id, under its name there. `context` comes back with it.

        `may_be_told`: if it has RETAIN, it may be a last value that F tells those who subscribe.
        """
        self._wake(now)
        held = Held(message, context, fingerprint(message), self._due_at(now))
        self._held.add(held)
        message_id = self._take_echo(held.print, now) or self._unmatched.take(held.print, now)
        if message_id is not None:
            self.counters.matched += 1
            self._identify(held, message_id)
        elif not (may_be_told and self._recall(held, now)):
            held.owner = self._carriers.leader(message.topic)
            if held.owner == self.attendance.carrier_id and self.attendance.may_lead:
                self._lead(held)
        while self._held.is_too_full:
            self.counters.overflowed += 1
            self._identify(self._held.first_waiting(), self._new_id())

    def _take_echo(self, print_: bytes, now: float) -> MessageId | None:
        # Our first word here comes back before any message of ours does: until then what is alike is
        # another's, unless it waited at F since our last connection.
        attendance = self.attendance
        hears_itself = attendance.hears_itself
        if hears_itself is None:
            hears_itself = attendance.heard_itself_before
        return self._echoes.take(print_, now) if hears_itself else None

    def _recall(self, held: Held, now: float) -> bool:
        """A last value, told since we subscribed: is it known here? If not, others may know it."""
        if not held.message.retain or now >= self._told_until:
            return False
        topic_print = fingerprint_topic(held.message.topic)
        if topic_print in self._told or len(self._told) >= self._bounds.values:
            return False
        self._told.add(topic_print)
        message_id = self._values.recall(topic_print, held.print)
        if message_id is None:
            self._questions.append((topic_print, held.print))
            return False
        self.counters.recalled += 1
        self._identify(held, message_id)
        return True

    def _lead(self, held: Held) -> None:
        message_id = self._new_id()
        if self._carriers:
            self.counters.stamped += 1
            self._new_stamps.append((message_id, held.print))
        else:
            self.counters.alone += 1
        self._identify(held, message_id)

    def _reassign(self, now: float) -> None:
        """Others are there than before. What belongs to one who is still there waits for its stamp."""
        for held in self._held.waiting():
            if not self._carriers.has_rank(held.owner):
                held.owner = self._carriers.leader(held.message.topic)
                if held.owner != self.attendance.carrier_id:
                    self._held.wait_again(held, self._due_at(now))
                elif self.attendance.may_lead:
                    self._lead(held)

    def _pass_on(self, held: Held, now: float) -> None:
        """Its owner is there, and has no stamp for it: it may not have got the message."""
        held.owner = self._carriers.next_leader(held.message.topic, held.owner) or self.attendance.carrier_id
        if held.owner == self.attendance.carrier_id:
            self.counters.timed_out += 1
            self._lead(held)
        else:
            self._held.wait_again(held, self._due_at(now))

    def _due_at(self, now: float) -> float:
        """A newcomer waits longer: it may not know of one whom the others wait for, and who is dead."""
        return now + self.attendance.patience_s * (1 if self._carriers.own_rank else 2)

    def _identify(self, held: Held, message_id: MessageId) -> None:
        message = held.message
        message.id = message_id
        self._held.identify(held)
        if message.retain:
            topic_print = fingerprint_topic(message.topic)
            self._values.remember(topic_print, held.print if message.payload else None, message_id)

    def _new_id(self) -> MessageId:
        self._sequence += 1
        return MessageId(self.attendance.identity, self._life, self._sequence)

    def note_sent(self, message: Message, now: float) -> None:
        """A message with its id leaves for F, for the first time or again: after `take_publications`."""
        if message.id is None or not self.wants_sent:
            return
        stamp = message.id, fingerprint(message)
        if not self._carries_ids and self.attendance.hears_itself is not False:
            self._echoes.add(stamp, now)
        self._recent.append((now, stamp))
        if not self.attendance.is_alone:
            self._sent_stamps.append(stamp)

    # What others publish under hedgerow/bridge/

    def receive_control(self, topic: str, payload: bytes, now: float) -> None:
        attendance = self.attendance
        if not attendance.is_connected:
            return
        self._wake(now)
        try:
            if topic == STAMPS_TOPIC:
                self._receive_stamps(payload, now)
            elif topic == IDENTITY_TOPIC:
                if attendance.receive_identity(payload):
                    self._values.clear()  # They may be those of another broker at the same address.
            elif topic.startswith(CARRIER_TOPIC):
                if attendance.receive_presence(topic.removeprefix(CARRIER_TOPIC), payload, now):
                    self._reassign(now)
            elif topic.startswith(QUESTION_TOPIC):
                self._receive_question(topic.removeprefix(QUESTION_TOPIC), payload)
            elif topic == ANSWER_TOPIC + attendance.carrier_id:
                self._receive_answer(payload)
            elif not topic.startswith(ANSWER_TOPIC):
                raise ValueError("nothing that carriers say")
        except ValueError:
            self.counters.malformed += 1

    def _receive_stamps(self, payload: bytes, now: float) -> None:
        life, stamps, goes_before = decode_stamps(payload)
        if life == self._life:
            return
        for message_id, print_ in stamps:
            held = self._held.find(print_)
            if held is not None:
                self.counters.matched += 1
                self._identify(held, message_id)
            elif goes_before or self.attendance.is_settled:
                self.counters.unmatched += self._unmatched.add((message_id, print_), now)
            else:
                self.counters.unmatched += 1  # of a message from before our subscriptions

    def _receive_question(self, asker: str, payload: bytes) -> None:
        life, prints = decode_question(payload)
        if life == self._life:
            return
        known = ((self._values.recall(topic, message), message) for topic, message in prints)
        stamps = [(message_id, message) for message_id, message in known if message_id is not None]
        self._answer(asker, stamps)

    def _answer(self, carrier_id: str, stamps: list[Stamp]) -> None:
        for each in encode_stamps(self._life, stamps):
            self.attendance.publications.append(Message(ANSWER_TOPIC + carrier_id, each, 1))

    def _receive_answer(self, payload: bytes) -> None:
        """Only for who asked: with others it would wait for the next message that is alike."""
        _, stamps, _ = decode_stamps(payload)
        for message_id, print_ in stamps:
            held = self._held.find(print_)
            if held is not None:
                self.counters.recalled += 1
                self._identify(held, message_id)
