"""Which of several overlapping subscriptions a copy of a message is for.

A server may send one copy of a message for each subscription that matches, and Mosquitto does so in
MQTT 5; given to every matching subscription of a bus, each copy would arrive at all of them. The
specification's answer is the subscription identifier (§3.8.2.1.2). It costs bytes in every message and
keeps brokers from forwarding packets as they came, so filters get one only when they overlap.
"""

from __future__ import annotations

from collections.abc import Iterable

from hedgerow.client.transport import Inbox, Route
from hedgerow.topics import wanted_topics


def overlap(one: str, other: str) -> bool:
    """Is there a topic name that both filters match?"""
    if _is_hidden_from(one, other) or _is_hidden_from(other, one):
        return False
    ours, theirs = one.split("/"), other.split("/")
    for mine, yours in zip(ours, theirs, strict=False):
        if "#" in (mine, yours):
            return True
        if mine != yours and "+" not in (mine, yours):
            return False
    longer, depth = (ours, len(theirs)) if len(ours) > len(theirs) else (theirs, len(ours))
    return len(ours) == len(theirs) or longer[depth:] == ["#"]  # "a/#" matches "a" too: §4.7.1.2


def _is_hidden_from(topic_filter: str, other: str) -> bool:
    """MQTT-4.7.2-1: a wildcard in the first level does not match names that begin with $."""
    return topic_filter[:1] == "$" and other[:1] in ("+", "#")


class SubscriptionIdentifiers:
    """By topic filter, for those that overlap with another of the same bus."""

    def __init__(self) -> None:
        self._identifiers: dict[str, int] = {}
        self._from_the_start: set[str] = set()
        self._last = 0

    def __bool__(self) -> bool:
        return bool(self._identifiers)

    def add(self, topic_filter: str, standing: Iterable[str]) -> list[str]:
        """A filter is about to be subscribed to: the filters that must be identified now, the new one
        last. Those before it stand already, and have to be subscribed to again with their identifiers."""
        if topic_filter in self._identifiers:
            return [topic_filter]
        pattern = wanted_topics(topic_filter)
        others = [each for each in standing if each != topic_filter and overlap(wanted_topics(each), pattern)]
        if not others:
            return []
        new = [each for each in dict.fromkeys(others) if each not in self._identifiers]
        for each in new:
            self._last += 1
            self._identifiers[each] = self._last
        self.set(topic_filter, self._last + 1)
        return [*new, topic_filter]

    def set(self, topic_filter: str, identifier: int) -> None:
        """A filter is about to be subscribed to with this identifier."""
        self._identifiers[topic_filter] = identifier
        self._from_the_start.add(topic_filter)
        self._last = max(self._last, identifier)

    def get(self, topic_filter: str) -> int | None:
        return self._identifiers.get(topic_filter)

    def remove(self, topic_filter: str) -> None:
        self._identifiers.pop(topic_filter, None)
        self._from_the_start.discard(topic_filter)

    def choose(self, route: Route, identifiers: tuple[int, ...]) -> Iterable[Inbox]:
        """Of the inboxes that match, those that a copy with these identifiers is for."""
        meant = {
            topic_filter
            for filters in route.values()
            for topic_filter in filters
            if self._identifiers.get(topic_filter) in identifiers
        }
        if meant:
            # Of the copies for several filters of one subscription, the first filter's is the one.
            return [inbox for inbox, filters in route.items() if filters[0] in meant]
        # A copy without identifiers, or with those that an earlier process gave. It may have left before
        # a filter that stood already got its identifier, but is for none that always had one.
        old = [each for each, filters in route.items() if not self._from_the_start.issuperset(filters)]
        return old or route
