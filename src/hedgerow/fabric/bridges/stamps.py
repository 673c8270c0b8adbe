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

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from hedgerow.fabric.bridges.carriers import Carriers
from hedgerow.fabric.bridges.stamp_codec import (
    MAX_STAMPS,
    Presence,
    Stamp,
    decode_presence,
    decode_question,
    decode_stamps,
    encode_presence,
    encode_question,
    encode_stamps,
    fingerprint,
    fingerprint_topic,
)
from hedgerow.fabric.bridges.stamp_tables import MAX_VALUES, Held, HeldMessages, LastValues, UnmatchedStamps
from hedgerow.message import Message, MessageId
from hedgerow.topics import validate_name

PREFIX = "hedgerow/bridge/"
CONTROL_FILTER = PREFIX + "#"
IDENTITY_TOPIC = PREFIX + "identity"
CARRIER_TOPIC = PREFIX + "carrier/"
STAMPS_TOPIC = PREFIX + "stamps"
QUESTION_TOPIC = PREFIX + "question/"
ANSWER_TOPIC = PREFIX + "answer/"

INTERVAL_S = 0.5
MISSES = 3  # Intervals without a word, after which a carrier is gone or has no stamp for us.
SETTLE_S = 0.25  # for the others to answer a newcomer; twice what F took to answer, where that is longer
MAX_SETTLE_S = 2.0
ANSWER_GAP_S = 0.05  # A flood of newcomers does not make every carrier speak each time.
ECHO_S = 10.0  # How late F may hand our own message back.
MAX_RANK = 2**32 - 1
MAX_RECENT = 200  # of what was sent: for a newcomer whose first word crossed it
_IDENTITY = re.compile(rb"[0-9a-f]{24}")
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
    refused: int = 0
    """Words of more carriers than there may be, or of one with our own id."""
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
    ) -> None:
        validate_name(CARRIER_TOPIC + carrier_id)
        if not _IDENTITY.fullmatch(random_identity.encode()):
            raise ValueError("an identity has 24 hex digits")
        self.carrier_id = carrier_id
        self.identity = random_identity
        self.counters = StampCounters()
        self._life = life
        self._carries_ids = carries_ids
        self._presence = Presence(life, 0, carries_ids, tuple(filters))
        self._interval_s = interval_s
        self._patience_s = MISSES * interval_s
        self._sequence = 0
        self._others = Carriers(carrier_id)
        self._is_connected = False
        self._is_settled = False
        self._has_identity = False  # heard on this connection
        self._hears_itself: bool | None = None
        self._heard_itself_before = False
        self._alive_at = self._connected_at = 0.0
        self._settle_at = self._rank_at = self._presence_at = _NEVER
        self._said_at = -_NEVER
        self._told_until = -_NEVER  # F may still tell what it retains,
        self._told: set[bytes] = set()  # of each topic once
        self._held = HeldMessages()
        self._unmatched = UnmatchedStamps(self._patience_s)
        self._echoes = UnmatchedStamps(ECHO_S)
        self._recent: deque[tuple[float, Stamp]] = deque(maxlen=MAX_RECENT)
        self._newcomers: set[str] = set()
        self._values = LastValues()
        self._publications: list[Message] = []
        self._new_stamps: list[Stamp] = []
        self._sent_stamps: list[Stamp] = []
        self._questions: list[tuple[bytes, bytes]] = []

    # What the bridge asks

    @property
    def is_alone(self) -> bool:
        return self._may_lead and not self._others

    @property
    def first_carrier(self) -> str | None:
        """Who decides what enters F (`entries.py`); None while that is not settled."""
        return self._others.first if self._may_lead or self._others.first != self.carrier_id else None

    @property
    def held_count(self) -> int:
        return len(self._held)

    @property
    def will(self) -> Message:
        """Says that this carrier is gone, sooner than its silence does: in CONNECT, or before DISCONNECT."""
        return Message(CARRIER_TOPIC + self.carrier_id, b"", 1)

    @property
    def wants_sent(self) -> bool:
        """Does `note_sent` do anything at present?"""
        return not (self._carries_ids and self._others.carry_ids)

    def next_id(self, now: float) -> MessageId | None:
        """For a message without id and RETAIN, the short way; None: give it to `receive_message`."""
        # Each message of a bridge that is alone passes here: `is_alone` and the like would double its cost.
        others = self._others
        if not others.own_rank or others.heard or self._rank_at != _NEVER or self._held.count:
            return None
        if now - self._alive_at > 2 * self._interval_s:
            return None
        if not self._carries_ids and self._hears_itself:
            return None  # It may be our own.
        self._alive_at = now
        self.counters.alone += 1
        return self._new_id()

    def take_identified(self) -> list[tuple[Message, object]]:
        """The messages given to `receive_message`, with `id` set, and their contexts, in order."""
        return self._held.take_leaving()

    def take_publications(self) -> list[Message]:
        """What to publish at F, before anything that `note_sent` was called for."""
        publications, self._publications = self._publications, []
        stamps, self._new_stamps = self._new_stamps, []
        sent, self._sent_stamps = self._sent_stamps, []
        questions, self._questions = self._questions, []
        payloads = encode_stamps(self._life, stamps) + encode_stamps(self._life, sent, goes_before=True)
        publications += [Message(STAMPS_TOPIC, each, 1) for each in payloads]
        for start in range(0, len(questions), MAX_STAMPS):
            payload = encode_question(self._life, questions[start : start + MAX_STAMPS])
            publications.append(Message(QUESTION_TOPIC + self.carrier_id, payload, 1))
        return publications

    # The connection

    def connected(self, now: float) -> None:
        self._is_connected = True
        self._has_identity = False
        self._heard_itself_before = bool(self._hears_itself)
        self._hears_itself = None
        self._connected_at = now
        self._told.clear()
        self._begin(now)
        self._settle_at = _NEVER  # until F has answered

    def receive_subscribed(self, now: float) -> None:
        """F has answered the subscription to `CONTROL_FILTER`."""
        if self._is_connected and not self._is_settled:
            self._settle_at = now + min(max(SETTLE_S, 2 * (now - self._connected_at)), MAX_SETTLE_S)
            self._told_until = now + self._patience_s

    def disconnected(self) -> None:
        self._is_connected = self._is_settled = False
        self._others.clear()
        self._others.take_rank(0)
        self._settle_at = self._rank_at = self._presence_at = _NEVER
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
        self._newcomers.clear()
        for waiting in self._publications, self._new_stamps, self._sent_stamps, self._questions:
            waiting.clear()

    def _begin(self, now: float) -> None:
        """As a newcomer."""
        self._is_settled = False
        self._alive_at = now
        self._others.take_rank(0)
        self._presence = self._presence._replace(rank=0)
        self._settle_at = now + SETTLE_S
        self._rank_at = _NEVER
        self._say_presence(now)

    def _settle(self, now: float) -> None:
        """Whoever is there has answered."""
        self._is_settled = True
        self._settle_at = _NEVER
        if not self._has_identity:
            self._publications.append(Message(IDENTITY_TOPIC, self.identity.encode(), 1, retain=True))
        self._presence = self._presence._replace(rank=min(self._others.highest_rank + 1, MAX_RANK))
        self._say_presence(now)
        self._hears_itself = bool(self._hears_itself)
        if self._hears_itself:
            self._rank_at = now + self._interval_s  # or when this comes back
            return
        # It will not, as our first word did not. Another who says the same rank now must hear of ours first.
        self._others.take_rank(self._presence.rank)
        self._rank_at = now + SETTLE_S if self._others else now
        self._reassign(now)

    def _take_rank(self, now: float) -> None:
        self._rank_at = _NEVER
        self._others.take_rank(self._presence.rank)
        self._reassign(now)

    @property
    def _may_lead(self) -> bool:
        return self._others.own_rank > 0 and self._rank_at == _NEVER

    def _has_stood_still(self, now: float) -> bool:
        return now - self._alive_at > 2 * self._interval_s

    def _wake(self, now: float) -> None:
        if self._is_settled and self._has_stood_still(now):
            self._others.excuse_silence(now)  # What they said meanwhile waits to be read.
            self._begin(now)
        self._alive_at = now

    # Time

    @property
    def deadline(self) -> float:
        """When `handle_timer` is next needed."""
        if not self._is_connected:
            return _NEVER
        gone_at = self._others.first_heard_at + self._patience_s
        return min(self._settle_at, self._rank_at, self._presence_at, gone_at, self._held.due_at)

    def handle_timer(self, now: float) -> None:
        if not self._is_connected:
            return
        self._wake(now)
        for carrier_id in self._others.silent_since(now - self._patience_s):
            self._others.forget(carrier_id)
            self._reassign(now)
        if self._settle_at <= now:
            self._settle(now)
        if self._rank_at <= now:
            self._take_rank(now)
        if self._presence_at <= now:
            self._say_presence(now)
        while self._held.due_at <= now:
            self._pass_on(self._held.first_waiting(), now)
        self.counters.unmatched += self._unmatched.expire(now)
        self._echoes.expire(now)

    # Messages

    def receive_message(self, message: Message, context: object, now: float) -> None:
        """One that came from F without an id, under its name there. `context` comes back with it."""
        self._wake(now)
        held = Held(message, context, fingerprint(message), self._due_at(now))
        self._held.add(held)
        message_id = self._take_echo(held.print, now) or self._unmatched.take(held.print, now)
        if message_id is not None:
            self.counters.matched += 1
            self._identify(held, message_id)
        elif not self._recall(held, now):
            held.owner = self._others.leader(message.topic)
            if held.owner == self.carrier_id and self._may_lead:
                self._lead(held)
        while self._held.is_too_full:
            self.counters.overflowed += 1
            self._identify(self._held.first_waiting(), self._new_id())

    def _take_echo(self, print_: bytes, now: float) -> MessageId | None:
        # Our first word here comes back before any message of ours does: until then what is alike is
        # another's, unless it waited at F since our last connection.
        hears_itself = self._heard_itself_before if self._hears_itself is None else self._hears_itself
        return self._echoes.take(print_, now) if hears_itself else None

    def _recall(self, held: Held, now: float) -> bool:
        """A last value, told since we subscribed: is it known here? If not, others may know it."""
        if not held.message.retain or now >= self._told_until:
            return False
        topic_print = fingerprint_topic(held.message.topic)
        if topic_print in self._told or len(self._told) >= MAX_VALUES:
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
        if self._others:
            self.counters.stamped += 1
            self._new_stamps.append((message_id, held.print))
        else:
            self.counters.alone += 1
        self._identify(held, message_id)

    def _reassign(self, now: float) -> None:
        """Others are there than before. What belongs to one who is still there waits for its stamp."""
        for held in self._held.waiting():
            if not self._others.has_rank(held.owner):
                held.owner = self._others.leader(held.message.topic)
                if held.owner != self.carrier_id:
                    self._held.wait_again(held, self._due_at(now))
                elif self._may_lead:
                    self._lead(held)

    def _pass_on(self, held: Held, now: float) -> None:
        """Its owner is there, and has no stamp for it: it may not have got the message."""
        held.owner = self._others.next_leader(held.message.topic, held.owner) or self.carrier_id
        if held.owner == self.carrier_id:
            self.counters.timed_out += 1
            self._lead(held)
        else:
            self._held.wait_again(held, self._due_at(now))

    def _due_at(self, now: float) -> float:
        """A newcomer waits longer: it may not know of one whom the others wait for, and who is dead."""
        return now + self._patience_s * (1 if self._others.own_rank else 2)

    def _identify(self, held: Held, message_id: MessageId) -> None:
        message = held.message
        message.id = message_id
        self._held.identify(held)
        if message.retain:
            topic_print = fingerprint_topic(message.topic)
            self._values.remember(topic_print, held.print if message.payload else None, message_id)

    def _new_id(self) -> MessageId:
        self._sequence += 1
        return MessageId(self.identity, self._life, self._sequence)

    def note_sent(self, message: Message, now: float) -> None:
        """A message with its id leaves for F, for the first time or again: after `take_publications`."""
        if message.id is None or not self.wants_sent:
            return
        stamp = message.id, fingerprint(message)
        if not self._carries_ids and self._hears_itself is not False:
            self._echoes.add(stamp, now)
        self._recent.append((now, stamp))
        if not self.is_alone:
            self._sent_stamps.append(stamp)

    # What others publish under hedgerow/bridge/

    def receive_control(self, topic: str, payload: bytes, now: float) -> None:
        if not self._is_connected:
            return
        self._wake(now)
        try:
            if topic == STAMPS_TOPIC:
                self._receive_stamps(payload, now)
            elif topic == IDENTITY_TOPIC:
                self._receive_identity(payload)
            elif topic == CARRIER_TOPIC + self.carrier_id:
                self._receive_own_presence(payload, now)
            elif topic.startswith(CARRIER_TOPIC):
                self._receive_presence(topic.removeprefix(CARRIER_TOPIC), payload, now)
            elif topic.startswith(QUESTION_TOPIC):
                self._receive_question(topic.removeprefix(QUESTION_TOPIC), payload)
            elif topic == ANSWER_TOPIC + self.carrier_id:
                self._receive_answer(payload)
            elif not topic.startswith(ANSWER_TOPIC):
                raise ValueError("nothing that carriers say")
        except ValueError:
            self.counters.malformed += 1

    def _receive_identity(self, payload: bytes) -> None:
        if not _IDENTITY.fullmatch(payload):
            raise ValueError("not an identity")
        self._has_identity = True
        if self.identity != payload.decode():
            self.identity = payload.decode()
            self._values.clear()  # They may be those of another broker at the same address.

    def _say_presence(self, now: float) -> None:
        self._publications.append(Message(CARRIER_TOPIC + self.carrier_id, encode_presence(self._presence)))
        self._said_at = now
        self._presence_at = now + self._interval_s
        since = now - self._interval_s
        while self._recent and self._recent[0][0] < since:
            self._recent.popleft()
        for newcomer in self._newcomers:
            # What we sent before we heard of it may have come to it, and the stamps not.
            self._answer(newcomer, [stamp for _, stamp in self._recent])
        self._newcomers.clear()

    def _receive_presence(self, carrier_id: str, payload: bytes, now: float) -> None:
        if not payload:
            self._newcomers.discard(carrier_id)
            if self._others.forget(carrier_id):
                self._reassign(now)
            return
        presence = decode_presence(payload)
        is_new = carrier_id not in self._others
        if is_new and self._others.is_full:
            self.counters.refused += 1
            return
        if is_new or not presence.rank:
            # It may be back before it was missed, and then says what it said before.
            self._presence_at = min(self._presence_at, max(now, self._said_at + ANSWER_GAP_S))
            self._newcomers.add(carrier_id)
        if self._others.hear(carrier_id, presence, now):
            self._reassign(now)

    def _receive_own_presence(self, payload: bytes, now: float) -> None:
        """F handed our own words back: from the same place on the others know them."""
        if not payload:
            self._presence_at = now  # The will of a connection before this one.
            return
        presence = decode_presence(payload)
        if presence.life != self._life:
            self.counters.refused += 1
            return
        self._hears_itself = True
        if self._rank_at != _NEVER and presence.rank == self._presence.rank:
            self._take_rank(now)

    def _receive_stamps(self, payload: bytes, now: float) -> None:
        life, stamps, goes_before = decode_stamps(payload)
        if life == self._life:
            return
        for message_id, print_ in stamps:
            held = self._held.find(print_)
            if held is not None:
                self.counters.matched += 1
                self._identify(held, message_id)
            elif goes_before or self._is_settled:
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
            self._publications.append(Message(ANSWER_TOPIC + carrier_id, each, 1))

    def _receive_answer(self, payload: bytes) -> None:
        """Only for who asked: with others it would wait for the next message that is alike."""
        _, stamps, _ = decode_stamps(payload)
        for message_id, print_ in stamps:
            held = self._held.find(print_)
            if held is not None:
                self.counters.recalled += 1
                self._identify(held, message_id)
