"""Attendance: who is at a foreign broker F, as one carrier says and hears it; its rank, and F's identity.

`stamps.py` says what carriers are, and why what they say is heard by all in one order. Each says every
`interval_s` that it is there; who is silent for `MISSES` intervals is gone. A newcomer has rank 0 until those
who are there have had time to answer, and takes its rank when F hands its own words back: from the same place
on the others know it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hedgerow.bridges.carriers import Carriers
from hedgerow.bridges.stamp_codec import Presence, decode_presence, encode_presence
from hedgerow.message import Message
from hedgerow.topics import validate_name

PREFIX = "hedgerow/bridge/"
IDENTITY_TOPIC = PREFIX + "identity"
CARRIER_TOPIC = PREFIX + "carrier/"

INTERVAL_S = 0.5
MISSES = 3  # Intervals without a word, after which a carrier is gone or has no stamp for us.
SETTLE_S = 0.25  # for the others to answer a newcomer; twice what F took to answer, where that is longer
MAX_SETTLE_S = 2.0
ANSWER_GAP_S = 0.05  # A flood of newcomers does not make every carrier speak each time.
MAX_RANK = 2**32 - 1
_IDENTITY = re.compile(rb"[0-9a-f]{24}")
_NEVER = float("inf")


class Attendance:
    """`Stamps` has the same arguments, and says what they are.

    What returns whether others are there than before, or we are, leaves it to the caller to act on that.
    """

    def __init__(
        self,
        carrier_id: str,
        life: int,
        carries_ids: bool,
        random_identity: str,
        filters: Iterable[str],
        interval_s: float,
    ) -> None:
        validate_name(CARRIER_TOPIC + carrier_id)
        if not _IDENTITY.fullmatch(random_identity.encode()):
            raise ValueError("an identity has 24 hex digits")
        self.carrier_id = carrier_id
        self.identity = random_identity
        self.carriers = Carriers(carrier_id)
        self.interval_s = interval_s
        self.patience_s = MISSES * interval_s
        self.is_connected = False
        self.is_settled = False
        self.hears_itself: bool | None = None  # None: not known yet on this connection
        self.heard_itself_before = False
        self.publications: list[Message] = []
        self.refused = 0
        """Words of more carriers than there may be, or of one with our own id."""
        self._presence = Presence(life, 0, carries_ids, tuple(filters))
        self._has_identity = False  # heard on this connection
        self._alive_at = self._connected_at = 0.0
        self._settle_at = self._rank_at = self._presence_at = _NEVER
        self._said_at = -_NEVER
        self._newcomers: set[str] = set()
        self._greeted: list[str] = []

    # What is asked

    @property
    def may_lead(self) -> bool:
        return self.carriers.own_rank > 0 and self._rank_at == _NEVER

    @property
    def is_alone(self) -> bool:
        return self.may_lead and not self.carriers

    @property
    def first_carrier(self) -> str | None:
        """Who decides what enters F (`admission.py`); None while that is not settled."""
        first = self.carriers.first
        return first if self.may_lead or first != self.carrier_id else None

    @property
    def will(self) -> Message:
        """Says that this carrier is gone, sooner than its silence does: in CONNECT, or before DISCONNECT."""
        return Message(CARRIER_TOPIC + self.carrier_id, b"", 1)

    def is_alone_and_awake(self, now: float) -> bool:
        """`is_alone`, and `wake` would find nothing: then it need not be called."""
        # For each message of a bridge that is alone: properties would double its cost.
        others = self.carriers
        if not others.own_rank or others.heard or self._rank_at != _NEVER:
            return False
        if now - self._alive_at > 2 * self.interval_s:
            return False
        self._alive_at = now
        return True

    def take_newcomers(self) -> list[str]:
        """Those whom our last word was the first for."""
        greeted, self._greeted = self._greeted, []
        return greeted

    # The connection

    def connected(self, now: float) -> None:
        self.is_connected = True
        self._has_identity = False
        self.heard_itself_before = bool(self.hears_itself)
        self.hears_itself = None
        self._connected_at = now
        self._begin(now)
        self._settle_at = _NEVER  # until F has answered

    def receive_subscribed(self, now: float) -> None:
        self._settle_at = now + min(max(SETTLE_S, 2 * (now - self._connected_at)), MAX_SETTLE_S)

    def disconnected(self) -> None:
        self.is_connected = self.is_settled = False
        self.carriers.clear()
        self.carriers.take_rank(0)
        self._settle_at = self._rank_at = self._presence_at = _NEVER
        self._newcomers.clear()
        self.publications.clear()

    def _begin(self, now: float) -> None:
        """As a newcomer."""
        self.is_settled = False
        self._alive_at = now
        self.carriers.take_rank(0)
        self._presence = self._presence._replace(rank=0)
        self._settle_at = now + SETTLE_S
        self._rank_at = _NEVER
        self._say_presence(now)

    def _settle(self, now: float) -> bool:
        """Whoever is there has answered. Returns whether we have a rank now."""
        self.is_settled = True
        self._settle_at = _NEVER
        if not self._has_identity:
            self.publications.append(Message(IDENTITY_TOPIC, self.identity.encode(), 1, retain=True))
        self._presence = self._presence._replace(rank=min(self.carriers.highest_rank + 1, MAX_RANK))
        self._say_presence(now)
        self.hears_itself = bool(self.hears_itself)
        if self.hears_itself:
            self._rank_at = now + self.interval_s  # or when this comes back
            return False
        # It will not, as our first word did not. Another who says the same rank now must hear of ours first.
        self.carriers.take_rank(self._presence.rank)
        self._rank_at = now + SETTLE_S if self.carriers else now
        return True

    def _take_rank(self) -> None:
        self._rank_at = _NEVER
        self.carriers.take_rank(self._presence.rank)

    def wake(self, now: float) -> None:
        """Something happens: have we stood still until now?"""
        if self.is_settled and now - self._alive_at > 2 * self.interval_s:
            self.carriers.excuse_silence(now)  # What they said meanwhile waits to be read.
            self._begin(now)
        self._alive_at = now

    # Time

    @property
    def deadline(self) -> float:
        gone_at = self.carriers.first_heard_at + self.patience_s
        return min(self._settle_at, self._rank_at, self._presence_at, gone_at)

    def silent(self, now: float) -> list[str]:
        """Those who are gone, for the caller to forget."""
        return self.carriers.silent_since(now - self.patience_s)

    def handle_timer(self, now: float) -> bool:
        """Have we got a rank?"""
        has_rank = self._settle_at <= now and self._settle(now)
        if self._rank_at <= now:
            self._take_rank()
            has_rank = True
        if self._presence_at <= now:
            self._say_presence(now)
        return has_rank

    def set_filters(self, filters: Iterable[str], now: float) -> None:
        """Others from now on: said before a SUBSCRIBE for more of them, and behind an UNSUBSCRIBE.

        So whoever waits for our stamp waits for one that comes, but for what F takes between the two packets.
        """
        said = tuple(filters)
        if said != self._presence.filters:
            self._presence = self._presence._replace(filters=said)
            if self.is_connected:
                self._say_presence(now)

    # What carriers say. Each raises ValueError for what cannot be read.

    def receive_identity(self, payload: bytes) -> bool:
        """Is it another than before?"""
        if not _IDENTITY.fullmatch(payload):
            raise ValueError("not an identity")
        self._has_identity = True
        before, self.identity = self.identity, payload.decode()
        return self.identity != before

    def _say_presence(self, now: float) -> None:
        self.publications.append(Message(CARRIER_TOPIC + self.carrier_id, encode_presence(self._presence)))
        self._said_at = now
        self._presence_at = now + self.interval_s
        self._greeted += self._newcomers
        self._newcomers.clear()

    def receive_presence(self, carrier_id: str, payload: bytes, now: float) -> bool:
        """Is that news?"""
        if carrier_id == self.carrier_id:
            return self._receive_own_presence(payload, now)
        if not payload:
            self._newcomers.discard(carrier_id)
            return self.carriers.forget(carrier_id)
        presence = decode_presence(payload)
        is_new = carrier_id not in self.carriers
        if is_new and self.carriers.is_full:
            self.refused += 1
            return False
        if is_new or not presence.rank:
            # It may be back before it was missed, and then says what it said before.
            self._presence_at = min(self._presence_at, max(now, self._said_at + ANSWER_GAP_S))
            self._newcomers.add(carrier_id)
        return self.carriers.hear(carrier_id, presence, now)

    def _receive_own_presence(self, payload: bytes, now: float) -> bool:
        """F handed our own words back: from the same place on the others know them."""
        if not payload:
            self._presence_at = now  # The will of a connection before this one.
            return False
        presence = decode_presence(payload)
        if presence.life != self._presence.life:
            self.refused += 1
            return False
        self.hears_itself = True
        has_rank = self._rank_at != _NEVER and presence.rank == self._presence.rank
        if has_rank:
            self._take_rank()
        return has_rank
