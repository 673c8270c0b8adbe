"""Which carriers are at a foreign broker, and which of them leads a topic: `stamps.py` says what that is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b

from hedgerow.bridges.section import Section
from hedgerow.bridges.stamp_codec import Presence
from hedgerow.topics import matches

MAX_CARRIER_ID = 128  # characters; 64 KiB for each message that is remembered would be memory for the taking
MAX_CARRIERS = 64  # Anybody at the broker may say that it is one.
MAX_LEADERS = 10_000  # topics whose leader is remembered
_NOT_IN_A_LEVEL = re.compile("[/+#]")


def carrier_id(section: Section, node_id: str) -> str:
    """Its client identifier at the far broker, or, where that is no level of a topic, what is made of it."""
    client_id = section.remote_clientid_on(node_id)
    if len(client_id) <= MAX_CARRIER_ID and not _NOT_IN_A_LEVEL.search(client_id):
        return client_id
    digest = blake2b(client_id.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{_NOT_IN_A_LEVEL.sub('.', client_id[:64])}.{digest}"


class Carriers:
    """All but ourselves; of ourselves it knows `own_rank`, 0 while we lead nothing."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self.own_rank = 0
        self.heard: dict[str, tuple[Presence, float]] = {}
        self._leaders: dict[str, str | None] = {}

    def __len__(self) -> int:
        return len(self.heard)

    def __contains__(self, carrier_id: str) -> bool:
        return carrier_id in self.heard

    def has_rank(self, carrier_id: str | None) -> bool:
        known = self.heard.get(carrier_id) if carrier_id is not None else None
        return known is not None and known[0].rank > 0

    def take_rank(self, rank: int) -> None:
        self.own_rank = rank
        self._leaders.clear()

    @property
    def highest_rank(self) -> int:
        return max((presence.rank for presence, _ in self.heard.values()), default=0)

    @property
    def carry_ids(self) -> bool:
        return all(presence.carries_ids for presence, _ in self.heard.values())

    @property
    def first_heard_at(self) -> float:
        """Of those that are there, who was silent for longest, and since when."""
        return min((heard_at for _, heard_at in self.heard.values()), default=float("inf"))

    @property
    def is_full(self) -> bool:
        return len(self.heard) >= MAX_CARRIERS

    def hear(self, carrier_id: str, presence: Presence, now: float) -> bool:
        """Is that news?"""
        known = self.heard.get(carrier_id)
        self.heard[carrier_id] = presence, now
        if known is not None and known[0] == presence:
            return False
        self._leaders.clear()
        return True

    def forget(self, carrier_id: str) -> bool:
        """Was it there?"""
        self._leaders.clear()
        return self.heard.pop(carrier_id, None) is not None

    def clear(self) -> None:
        self.heard.clear()
        self._leaders.clear()

    def silent_since(self, time: float) -> list[str]:
        return [carrier_id for carrier_id, (_, heard_at) in self.heard.items() if heard_at <= time]

    def excuse_silence(self, now: float) -> None:
        for carrier_id, (presence, _) in self.heard.items():
            self.heard[carrier_id] = presence, now

    def leader(self, topic: str) -> str | None:
        """The lowest rank, then the lowest id; None while nobody has a rank."""
        if topic in self._leaders:
            return self._leaders[topic]
        if len(self._leaders) >= MAX_LEADERS:
            self._leaders.clear()
        leader = self._leaders[topic] = min(self._candidates(topic), default=(0, None))[1]
        return leader

    @property
    def first(self) -> str | None:
        """The lowest rank of all, whatever their topics; None while nobody has one."""
        ranked = [(presence.rank, name) for name, (presence, _) in self.heard.items() if presence.rank]
        if self.own_rank:
            ranked.append((self.own_rank, self._own_id))
        return min(ranked, default=(0, None))[1]

    def next_leader(self, topic: str, leader: str | None) -> str | None:
        """Who comes after this one; None when it was the last."""
        names = [carrier_id for _, carrier_id in sorted(self._candidates(topic))]
        position = names.index(leader) + 1 if leader in names else 0
        return names[position] if position < len(names) else None

    def _candidates(self, topic: str) -> Iterator[tuple[int, str]]:
        """We ourselves are one for each topic that we are asked for: we got a message of it."""
        if self.own_rank:
            yield self.own_rank, self._own_id
        for carrier_id, (presence, _) in self.heard.items():
            if presence.rank and any(matches(each, topic) for each in presence.filters):
                yield presence.rank, carrier_id
