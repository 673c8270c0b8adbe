"""Admission: of several bridges at one foreign broker, one brings each message there, once.

A broker F that knows no ids cannot tell that a message came to it by two bridges, so its clients would get it
twice. Where several carriers are at F (`stamps.py` says who they are), the one of the lowest rank decides for
all: a carrier that has a message for F *asks*, and the leader *admits* it, or says that F has it. What the
leader itself brings it admits at once, and says so. All carriers hear every answer: who has the message too
lets go of it, and whoever leads next knows what F has. Who brought the last message of an origin is preferred
for a moment, so that what comes by two ways at once keeps its order.

    hedgerow/bridge/ask/CARRIER        ids
    hedgerow/bridge/admitted/CARRIER   ids: CARRIER may bring them, and nobody else
    hedgerow/bridge/known/CARRIER      ids: CARRIER need not bring them

The answer of a leader that goes away is asked for again, from the next. A carrier whose link broke asks again
for what was not acknowledged, and is admitted again. A carrier that is killed between the answer and its
message keeps it at QoS 1 and 2 for its next start.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import ClassVar

from hedgerow.bridges.carriers import MAX_CARRIER_ID
from hedgerow.bridges.stamp_codec import decode_ids, encode_ids, is_usable
from hedgerow.duplicates import DuplicateLog
from hedgerow.message import Message, MessageId

ASK_TOPIC = "hedgerow/bridge/ask/"
ADMITTED_TOPIC = "hedgerow/bridge/admitted/"
KNOWN_TOPIC = "hedgerow/bridge/known/"

PATIENCE_S = 1.5  # for the leader's answer: as long as it takes to find that it is gone
PREFERENCE_S = 0.1  # How long the others wait for who brought the last one of the same origin.
MAX_PREFERRED = 1_000  # origins
MAX_WAITING = 10_000  # messages that wait for an answer
MAX_ADMITTED = 10_000  # of which it is remembered who brought them
LOG_BYTES = 4 * 1024 * 1024


class Admission:
    """One carrier's part in it. `set_leader` is told who leads; until then everything waits."""

    def __init__(
        self,
        carrier_id: str,
        *,
        max_preferred: int = MAX_PREFERRED,
        max_waiting: int = MAX_WAITING,
        max_admitted: int = MAX_ADMITTED,
    ) -> None:
        self.carrier_id = carrier_id
        self._max_preferred = max_preferred
        self._max_waiting = max_waiting
        self._max_admitted = max_admitted
        self.leader: str | None = None
        self.is_alone = False
        self.malformed = 0
        self._entered = DuplicateLog(LOG_BYTES)
        self._admitted: OrderedDict[MessageId, str] = OrderedDict()
        self._waiting: OrderedDict[MessageId, float] = OrderedDict()  # → when to ask again
        self._asking: list[MessageId] = []
        self._preferred: OrderedDict[tuple[str, int], tuple[str, float]] = OrderedDict()
        self._deferred: OrderedDict[tuple[str, MessageId], float] = OrderedDict()  # asked → decided when
        self._answers: list[tuple[MessageId, bool]] = []
        self._publications: list[tuple[str, list[MessageId]]] = []

    # What the bridge asks

    def enter(self, message_id: MessageId, now: float) -> bool | None:
        """May the message be sent to F? None: the answer will be among `take_answers`."""
        if self._admitted.get(message_id) == self.carrier_id:
            return True
        if self.is_alone:
            return self._decide(self.carrier_id, message_id, now)
        if self.leader == self.carrier_id and not self._must_defer(self.carrier_id, message_id, now):
            may = self._decide(self.carrier_id, message_id, now)
            if may:
                self._announce(ADMITTED_TOPIC + self.carrier_id, message_id)
            return may
        if message_id not in self._waiting:
            if len(self._waiting) >= self._max_waiting or not is_usable(message_id):
                return True  # Twice is better than never.
            self._waiting[message_id] = now + PATIENCE_S
            self._ask(message_id, now)
        return None

    def enter_run(self, ids: Sequence[MessageId], now: float) -> bool:
        """As `enter` for each, all of one life, while we are alone. False: ask for each, since F has some."""
        origin, epoch, _ = ids[0]
        life = self._entered.life(origin, epoch)
        admitted, is_new = self._admitted, True
        numbers = range(ids[0].sequence, ids[0].sequence + len(ids))
        if [each.sequence for each in ids] == list(numbers) and life.note_run(numbers[0], len(numbers)):
            admitted.update(dict.fromkeys(ids, self.carrier_id))  # Ours: `enter` lets them through.
        else:
            for message_id in ids:
                if life.seen(message_id.sequence):
                    is_new = False
                    break
                admitted[message_id] = self.carrier_id
        while len(admitted) > self._max_admitted:
            admitted.popitem(last=False)
        self._prefer(self.carrier_id, ids[0], now)
        return is_new

    def _ask(self, message_id: MessageId, now: float) -> None:
        if self.leader == self.carrier_id:
            self._deferred[self.carrier_id, message_id] = now + PREFERENCE_S
        else:
            self._asking.append(message_id)

    def refuse(self, message_id: MessageId) -> None:
        """Answer later what was answered already."""
        self._answers.append((message_id, False))

    def was_admitted(self, message_id: MessageId) -> bool:
        """Has it been brought, or is it about to be, as far as is remembered?"""
        return message_id in self._admitted

    def note_heard(self, message_id: MessageId) -> None:
        """F has it: it came from there."""
        self._entered.seen(message_id)
        self._settle(message_id, False)

    def note_run(self, origin: str, epoch: int, sequences: Sequence[int]) -> None:
        """We brought these, all of one life, while we were alone."""
        self._entered.life(origin, epoch).note_all(sequences)

    def take_answers(self) -> list[tuple[MessageId, bool]]:
        """Messages that waited, and whether they are to be sent."""
        answers, self._answers = self._answers, []
        return answers

    def take_publications(self) -> list[Message]:
        """What to publish at F, before anything that was admitted."""
        if self._asking and self.leader is not None:
            asking, self._asking = self._asking, []
            waiting = [each for each in asking if each in self._waiting]
            self._publications.append((ASK_TOPIC + self.carrier_id, waiting))
        publications, self._publications = self._publications, []
        return [Message(topic, payload, 1) for topic, ids in publications for payload in encode_ids(ids)]

    # What the others say

    def receive(self, topic: str, payload: bytes, now: float) -> bool:
        """Was this publication for us?"""
        for prefix, handle in self._HANDLERS.items():
            if topic.startswith(prefix):
                carrier_id = topic[len(prefix) :]
                try:
                    ids = decode_ids(payload)
                except ValueError:
                    self.malformed += 1
                else:
                    if len(carrier_id) <= MAX_CARRIER_ID:
                        handle(self, carrier_id, ids, now)
                return True
        return False

    def _receive_ask(self, carrier_id: str, ids: Sequence[MessageId], now: float) -> None:
        if self.leader == self.carrier_id and carrier_id != self.carrier_id:
            for message_id in ids:
                if self._must_defer(carrier_id, message_id, now) and len(self._deferred) < self._max_waiting:
                    self._deferred[carrier_id, message_id] = now + PREFERENCE_S
                else:
                    self._answer(carrier_id, message_id, now)

    def _receive_admitted(self, carrier_id: str, ids: Sequence[MessageId], now: float) -> None:
        for message_id in ids:
            self._remember(carrier_id, message_id)
            self._settle(message_id, carrier_id == self.carrier_id)

    def _receive_known(self, carrier_id: str, ids: Sequence[MessageId], now: float) -> None:
        if carrier_id == self.carrier_id:
            for message_id in ids:
                self._settle(message_id, False)

    _HANDLERS: ClassVar[dict[str, Callable[[Admission, str, Sequence[MessageId], float], None]]] = {
        ASK_TOPIC: _receive_ask,
        ADMITTED_TOPIC: _receive_admitted,
        KNOWN_TOPIC: _receive_known,
    }

    # The decision

    def _must_defer(self, carrier_id: str, message_id: MessageId, now: float) -> bool:
        """Is another likely to bring it, in its order?"""
        origin, epoch, _ = message_id
        preferred, at = self._preferred.get((origin, epoch), (carrier_id, 0.0))
        return preferred != carrier_id and at + PREFERENCE_S * 2 > now and message_id not in self._admitted

    def _answer(self, carrier_id: str, message_id: MessageId, now: float) -> None:
        may = self._decide(carrier_id, message_id, now)
        self._announce((ADMITTED_TOPIC if may else KNOWN_TOPIC) + carrier_id, message_id)
        if carrier_id == self.carrier_id:
            self._settle(message_id, may)

    def _decide(self, carrier_id: str, message_id: MessageId, now: float) -> bool:
        was_admitted = self._admitted.get(message_id) == carrier_id
        may = not self._entered.seen(message_id) or was_admitted
        if may:
            self._remember(carrier_id, message_id)
            self._prefer(carrier_id, message_id, now)
            if carrier_id != self.carrier_id:
                self._settle(message_id, False)
        return may

    def _prefer(self, carrier_id: str, message_id: MessageId, now: float) -> None:
        origin, epoch, _ = message_id
        self._preferred[origin, epoch] = carrier_id, now
        self._preferred.move_to_end((origin, epoch))
        if len(self._preferred) > self._max_preferred:
            self._preferred.popitem(last=False)

    def _announce(self, topic: str, message_id: MessageId) -> None:
        if not self._publications or self._publications[-1][0] != topic:
            self._publications.append((topic, []))
        self._publications[-1][1].append(message_id)

    def _remember(self, carrier_id: str, message_id: MessageId) -> None:
        self._entered.seen(message_id)
        self._admitted[message_id] = carrier_id
        self._admitted.move_to_end(message_id)
        if len(self._admitted) > self._max_admitted:
            self._admitted.popitem(last=False)

    def _settle(self, message_id: MessageId, may: bool) -> None:
        if self._waiting.pop(message_id, None) is not None:
            self._answers.append((message_id, may))

    # Time, and who leads

    @property
    def deadline(self) -> float:
        waiting = next(iter(self._waiting.values()), float("inf"))
        return min(waiting, next(iter(self._deferred.values()), float("inf")))

    def handle_timer(self, now: float) -> None:
        for (carrier_id, message_id), at in list(self._deferred.items()):
            if at > now and message_id not in self._admitted:
                continue
            del self._deferred[carrier_id, message_id]
            if carrier_id != self.carrier_id or message_id in self._waiting:
                self._answer(carrier_id, message_id, now)
        overdue = [each for each, at in self._waiting.items() if at <= now]
        for message_id in overdue:
            self._waiting[message_id] = now + PATIENCE_S
            self._waiting.move_to_end(message_id)
            self._ask(message_id, now)

    def set_leader(self, leader: str | None, is_alone: bool, now: float) -> None:
        if leader == self.leader and is_alone == self.is_alone:
            return
        self.leader, self.is_alone = leader, is_alone
        self._asking.clear()
        self._deferred.clear()
        for message_id in list(self._waiting):
            if leader == self.carrier_id or is_alone:
                self._answer(self.carrier_id, message_id, now)
            else:
                self._waiting[message_id] = now + PATIENCE_S
                self._asking.append(message_id)

    def disconnected(self) -> None:
        """What waited is sent anew, and asked for anew, with the session's next connection."""
        self.leader, self.is_alone = None, False
        self._waiting.clear()
        self._deferred.clear()
        for waiting in self._asking, self._answers, self._publications:
            waiting.clear()
