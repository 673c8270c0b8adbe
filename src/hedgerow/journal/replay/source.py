"""All replays of a node: who reads, from where, and whose turn it is.

Guarantees. A replay gives each message that the journal has from its beginning on and that its filter
matches, once and in order, as far as its client may read it now; then those that come, as soon as the journal
has them on its disk. The session's position is stored with what was handed out up to there
(`Durability.keep_behind`), so after `kill -9` a durable session goes on behind exactly
what it has, or had waiting.

How. Pages of the journal are read by the shell, in a thread (`Recorded`). Replays that have something to read
stand in a line; the first hands out slices until its page is over or its client is busy, and goes to the end.
One that has read everything waits until the journal has more.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from hedgerow.broker.core import BrokerCore
from hedgerow.broker.session import Session
from hedgerow.broker.source import Source
from hedgerow.errors import TopicError
from hedgerow.journal.replay import USER_PROPERTY
from hedgerow.journal.replay.names import NEW, POSITION, Start, read_start, split_name
from hedgerow.journal.replay.pages import Page, Place
from hedgerow.journal.replay.replay import Replay
from hedgerow.mqtt.reasons import Reason
from hedgerow.topics import REPLAY, is_wildcard

if TYPE_CHECKING:
    from hedgerow.broker.changes import SubscriptionRecord

KEPT = "replay"  # The store keeps positions under this name.
KEEP_S = 1.0  # How often, where nothing is to be acknowledged.
LOOKED_AT = 16  # replays in a turn, of those whose clients may be busy


class Recorded(Protocol):
    """The journal, for those who read it here."""

    @property
    def journal_id(self) -> str: ...

    @property
    def end_position(self) -> int:
        """Behind the newest that may be read."""
        ...

    def page(self, position: int) -> Page | None:
        """What is there. None: it is being read, and the shell comes again."""
        ...

    def find(self, start: Start, topic_filter: str, found: Callable[[int], None]) -> None:
        """Say later at which position that is."""
        ...

    def wake_beyond(self, position: int) -> None:
        """Have the shell come again when there is more than up to here."""
        ...


class ReplaySource(Source):
    prefix = REPLAY
    user_property = USER_PROPERTY

    def __init__(self, broker: BrokerCore, recorded: Recorded) -> None:
        self.messages = 0
        """Positions of the journal that replays have passed."""
        self.lost = 0
        """Those among them that could not be read any more."""
        self._broker = broker
        self._recorded = recorded
        self._replays: dict[Session, dict[str, Replay]] = {}
        self._line: deque[Replay] = deque()
        self._at_end: dict[Replay, None] = {}

    def restore(self) -> None:
        """Take up the subscriptions that the store had."""
        for session in list(self._broker.sessions.values()):
            for topic_filter, record in (session.subscriptions or {}).items():
                if topic_filter.startswith(REPLAY):
                    self._begin(session, record, self._broker.kept.get((KEPT, _key(session, topic_filter))))

    def __len__(self) -> int:
        return sum(map(len, self._replays.values()))

    @property
    def behind(self) -> int:
        """How many have something to read."""
        return len(self._line)

    # Subscriptions

    def refusal(self, session: Session, topic_filter: str) -> int | None:
        try:
            begin, wanted = split_name(topic_filter)
            read_start(begin, self._broker.now)
        except TopicError:
            return Reason.TOPIC_FILTER_INVALID
        if session.role.is_link:
            return Reason.NOT_AUTHORIZED
        if not is_wildcard(wanted) and not session.may_read(self._broker.access, wanted):
            return Reason.NOT_AUTHORIZED
        return None

    def subscribed(self, session: Session, record: SubscriptionRecord, is_new: bool) -> None:
        """Again: it goes on from where it was, with the new options."""
        known = self._replays.get(session, {}).get(record.subscription.topic_filter)
        if known is not None:
            known.set_options(record)
        else:
            self._begin(session, record, None)

    def _begin(self, session: Session, record: SubscriptionRecord, kept: str | None) -> None:
        name = record.subscription.topic_filter
        begin, topic_filter = split_name(name)
        start = read_start(begin, self._broker.now) if kept is None else self._read_kept(kept)
        if start.kind == NEW:
            start = Start(POSITION, self._recorded.end_position)
        replay = Replay(session, record, topic_filter, None)
        self._replays.setdefault(session, {})[name] = replay
        self._broker.subscriptions.reserve(topic_filter)
        if kept is None:
            # As it is now: an hour before now is not what it will be after a crash.
            self._broker.durability.keep(KEPT, _key(session, name), self._encode(start))
        self._recorded.find(start, topic_filter, partial(self._found, replay))

    def _found(self, replay: Replay, position: int) -> None:
        if self._is_there(replay):
            replay.position = replay.kept_position = position
            self._keep(replay)
            # Behind SUBACK, which waits for that.
            line_up = partial(self._line_up, replay)
            self._broker.durability.when_committed(line_up, replay.session.share or "")

    def unsubscribed(self, session: Session, topic_filter: str) -> None:
        replays = self._replays.get(session, {})
        replay = replays.pop(topic_filter, None)
        if replay is None:
            return
        if not replays:
            del self._replays[session]
        self._at_end.pop(replay, None)
        self._broker.subscriptions.release(replay.topic_filter)
        self._broker.durability.keep(KEPT, _key(session, topic_filter), None)

    def discarded(self, session: Session) -> None:
        for topic_filter in list(self._replays.get(session, ())):
            self.unsubscribed(session, topic_filter)

    def connected(self, session: Session) -> None:
        for replay in self._replays.get(session, {}).values():
            self._line_up(replay)

    # Turns

    def grown(self) -> None:
        """The journal has more."""
        waiting, self._at_end = self._at_end, {}
        for replay in waiting:
            self._line_up(replay)

    def serve(self) -> bool:
        """Hand out one slice. False: nobody has anything to read, or is ready for it."""
        line = self._line
        for _ in range(min(len(line), LOOKED_AT)):
            replay = line[0]
            place = self._place_of(replay)
            if place is not None and replay.is_ready(self._broker):
                self._feed(replay, place)
                if place.runs is None:
                    line.rotate(-1)
                return True
            if line and line[0] is replay:
                line.rotate(-1)
        return False

    def _place_of(self, replay: Replay) -> Place | None:
        """Where it is to read now. None: it has to wait, or has left the line."""
        line, position = self._line, replay.position
        if position is None or replay.session.connection is None or not self._is_there(replay):
            line.popleft()
            replay.is_in_line = False
            replay.place = None
            self._keep(replay)
            return None
        place = replay.place
        if place is not None and place.runs is not None:
            return place
        replay.place = None
        if position >= self._recorded.end_position:
            line.popleft()
            replay.is_in_line = False
            self._at_end[replay] = None
            self._keep(replay)
            self._recorded.wake_beyond(position)
            return None
        if not replay.is_ready(self._broker):
            return None
        page = self._recorded.page(position)
        if page is None:
            return None
        if page.start == position:
            self.lost += page.lost
        replay.place = place = Place(page, position)
        replay.position = place.position
        return place if place.runs is not None else None

    def _feed(self, replay: Replay, place: Place) -> None:
        before = place.position
        acknowledged = replay.feed(self._broker, place)
        self.messages += place.position - before
        session = replay.session
        if acknowledged and session.durable:
            assert replay.position is not None
            name = _key(session, replay.name)
            self._broker.durability.keep_behind(KEPT, name, self._encode(Start(POSITION, replay.position)))
            replay.kept_at, replay.kept_position = self._broker.now, replay.position
        elif replay.kept_at + KEEP_S <= self._broker.now:
            self._keep(replay)

    def _line_up(self, replay: Replay) -> None:
        is_read = replay.position is not None and replay.session.connection is not None
        if is_read and not replay.is_in_line and self._is_there(replay):
            replay.is_in_line = True
            self._at_end.pop(replay, None)
            self._line.append(replay)

    def _is_there(self, replay: Replay) -> bool:
        return self._replays.get(replay.session, {}).get(replay.name) is replay

    # What is kept

    def _keep(self, replay: Replay) -> None:
        position = replay.position
        is_kept = replay.session.durable and self._is_there(replay)
        if is_kept and position is not None and position != replay.kept_position:
            name = _key(replay.session, replay.name)
            self._broker.durability.keep_behind(KEPT, name, self._encode(Start(POSITION, position)))
            replay.kept_at, replay.kept_position = self._broker.now, position

    def _encode(self, start: Start) -> str:
        return json.dumps([self._recorded.journal_id, *start])

    def _read_kept(self, text: str) -> Start:
        journal_id, kind, number = json.loads(text)
        if kind == POSITION and journal_id != self._recorded.journal_id:
            return Start(POSITION, 0)  # of another journal: all of this one is new to the session
        return Start(kind, number)


def _key(session: Session, topic_filter: str) -> str:
    return f"{session.key}/{topic_filter}"
