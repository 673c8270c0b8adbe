"""Who is there, which topics there are, and their last values.

A member that uses a new topic announces it to all. A subscriber with wildcards asks for the topics that
they match, again and again, and those who publish to them answer; with nobody asking, nobody repeats
anything. The first times a subscriber asks for last values too, and of those who have one, one answers: the
others hear it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from hedgerow.message import Message, Properties
from hedgerow.multicast import frame
from hedgerow.multicast.frame import HEADER_BYTES, SEAL_BYTES, FrameKind, GroupInterest, Hello
from hedgerow.multicast.incoming import SendingMember
from hedgerow.multicast.limits import (
    ANSWER_WITHIN_S,
    ANSWERS_AT_ONCE,
    ANSWERS_PER_S,
    ASK_AGAIN_S,
    GONE_AFTER_S,
    IDLE_TOPIC_S,
    INTERESTS_PER_S,
    INTERVAL_S,
    MAX_ANSWERS,
    MAX_INTERESTS,
    MAX_PUBLISHERS,
    MulticastLimits,
)
from hedgerow.multicast.peers import PeerAddress, Peers
from hedgerow.multicast.publisher import Publisher
from hedgerow.multicast.random import Random
from hedgerow.multicast.subscriber import Subscriber
from hedgerow.multicast.timers import Timers
from hedgerow.multicast.transmitter import Transmitter
from hedgerow.multicast.values import LastValue, LastValues
from hedgerow.rates import Allowance
from hedgerow.topics import is_wildcard


class Discovery:
    def __init__(
        self,
        limits: MulticastLimits,
        transmitter: Transmitter,
        timers: Timers,
        values: LastValues,
        random: Random,
        publisher: Publisher,
        subscriber: Subscriber,
        peers: Peers,
    ) -> None:
        self.set_datagram_bytes(limits.datagram_bytes)
        self._transmitter = transmitter
        self._timers = timers
        self._values = values
        self._random = random
        self._publisher = publisher
        self._subscriber = subscriber
        self._peers = peers
        self._asks: dict[str, int] = {}  # filters whose last values were asked for so many times
        self._answers: dict[str, LastValue] = {}
        self._announcements: dict[str, None] = {}
        self._is_answer_due = False
        self._interests = Allowance(INTERESTS_PER_S, 0.5)

    def set_datagram_bytes(self, size: int) -> None:
        self._room = size - HEADER_BYTES - SEAL_BYTES

    def start(self, now: float) -> None:
        self._repeat(now)

    # Every few seconds

    def _repeat(self, now: float) -> None:
        self._transmitter.send_presence()
        wildcards = [each for each in self._subscriber.filters if is_wildcard(each)]
        self._send_interest(wildcards, wants_values=False)
        self._leave_silent_topics(now)
        self._subscriber.forget_silent(now - 2 * GONE_AFTER_S)
        self._publisher.flow.forget_silent(now)
        self._publisher.close_idle(now - IDLE_TOPIC_S, now)
        self._values.forget_deletions(now)
        self._peers.expire(now)
        for address, hello in self._peers.hellos(list(self._subscriber.filters), now):
            self.send_hello(address, hello)
        # Not all at the same time, and not always the same two.
        self._timers.at(now + INTERVAL_S * (0.8 + 0.4 * self._random.random()), self._repeat)

    def _leave_silent_topics(self, now: float) -> None:
        silent = [
            listening.topic
            for listening in self._subscriber.listening.values()
            if not listening.is_exact and listening.heard_at < now - GONE_AFTER_S
        ]
        for topic in silent:
            self._subscriber.cease(topic, now)

    def send_hello(self, address: PeerAddress, hello: Hello) -> None:
        body = frame.pack_hello(hello)
        if len(body) > self._room:
            body = frame.pack_hello(hello._replace(filters=["#"]))
        self._transmitter.send_to_peer(address, FrameKind.HELLO, body)

    # Asking

    def subscribed(self, topic_filter: str, now: float) -> None:
        if not self._asks:
            # When all that are made at once have been made.
            self._timers.at(now, self._ask)
        self._asks[topic_filter] = 0

    def reached_another(self, now: float) -> None:
        """A peer can hear us that could not before: it has not been asked yet."""
        for topic_filter in self._subscriber.filters:
            self.subscribed(topic_filter, now)

    def _ask(self, now: float) -> None:
        if not min(self._asks.values(), default=1):
            for address, hello in self._peers.hellos_again(list(self._subscriber.filters), now):
                self.send_hello(address, hello)
        asks = {each: count for each, count in self._asks.items() if each in self._subscriber.filters}
        self._send_interest(asks, wants_values=True)
        self._asks = {each: count + 1 for each, count in asks.items() if count < len(ASK_AGAIN_S)}
        if self._asks:
            # By the least asked: to ask once more than needed does no harm.
            self._timers.at(now + ASK_AGAIN_S[min(self._asks.values()) - 1], self._ask)

    def _send_interest(self, filters: Iterable[str], wants_values: bool) -> None:
        for page in self._pages(filters):
            self._transmitter.send_to_all(
                FrameKind.INTEREST, frame.pack_interest(GroupInterest(wants_values, page))
            )

    def _pages(self, names: Iterable[str]) -> Iterator[list[str]]:
        """As many at a time as fit into a frame."""
        page: list[str] = []
        size = 1
        for name in names:
            name_bytes = 2 + len(name.encode())
            if page and (size + name_bytes > self._room or len(page) == MAX_INTERESTS):
                yield page
                page, size = [], 1
            page.append(name)
            size += name_bytes
        if page:
            yield page

    # Answering

    def receive_interest(self, interest: GroupInterest, now: float) -> None:
        if not self._interests.take(now):
            return
        # Those who ask for values have just come, and may not have heard what was said before. The others
        # ask every few seconds, and one answer is for all of them.
        again_after_s = ASK_AGAIN_S[0] / 2 if interest.wants_values else INTERVAL_S / 2
        for topic_filter in interest.filters[:MAX_INTERESTS]:
            if is_wildcard(topic_filter):
                for topic, outgoing in islice(self._publisher.names.match_filter(topic_filter), MAX_ANSWERS):
                    if outgoing.announced_at < now - again_after_s:
                        outgoing.announced_at = now
                        self._announcements[topic] = None
            if interest.wants_values:
                for value in islice(self._values.match(topic_filter), MAX_ANSWERS - len(self._answers)):
                    self._answers.setdefault(value.message.topic, value)
        if self._announcements or self._answers:
            self._answer_at(now + ANSWER_WITHIN_S * self._random.random())

    def heard_value(self, topic: str) -> None:
        """Another member has told the last value that we have now."""
        self._answers.pop(topic, None)

    def _answer_at(self, at: float) -> None:
        if not self._is_answer_due:
            self._is_answer_due = True
            self._timers.at(at, self._answer)

    def _answer(self, now: float) -> None:
        self._is_answer_due = False
        if not self._announcements and not self._answers:
            return
        topics, self._announcements = self._announcements, {}
        self._send_topics(topics)
        # A few at a time: a question of forty bytes may be for all that was ever kept.
        sent_before = len(self._transmitter.to_groups)
        while self._answers and len(self._transmitter.to_groups) - sent_before < ANSWERS_AT_ONCE:
            topic = next(iter(self._answers))
            value = self._answers.pop(topic)
            if self._values.get(topic) is value:
                remaining = _remaining(value.message, now)
                if remaining is not None:
                    self._publisher.send_value(value._replace(message=remaining), now)
        # Also when none is left: a large value is many datagrams, and may be asked for again.
        sent = len(self._transmitter.to_groups) - sent_before
        self._answer_at(now + sent / ANSWERS_PER_S)

    def announce_new(self, now: float) -> None:
        new, self._publisher.new_topics = self._publisher.new_topics, []
        for topic in new:
            self._publisher.outgoing[topic].announced_at = now
        self._send_topics(new)

    def _send_topics(self, topics: Iterable[str]) -> None:
        for page in self._pages(topics):
            self._transmitter.send_to_all(FrameKind.TOPICS, frame.pack_names(page))

    # Hearing

    def receive_topics(self, sender: SendingMember, topics: list[str], now: float) -> None:
        for topic in topics:
            if topic[:1] == "$":
                continue
            listening = self._subscriber.listening.get(topic)
            if listening is None:
                if not self._subscriber.wants(topic):
                    continue
                listening = self._subscriber.listen(topic, now)
                if listening is None:
                    return
            listening.heard_at = now
            if len(listening.publishers) < MAX_PUBLISHERS:
                listening.publishers.add(sender.id)

    def receive_leave(self, sender: SendingMember, now: float) -> None:
        for listening in list(self._subscriber.listening.values()):
            if sender.id in listening.publishers:
                listening.publishers.discard(sender.id)
                if not listening.publishers and not listening.is_exact:
                    self._subscriber.cease(listening.topic, now)


def _remaining(message: Message, now: float) -> Message | None:
    """The message with the time that it has left; None when that is over."""
    if message.expires_at is None:
        return message
    if message.expires_at <= now:
        return None
    interval = message.remaining_interval(now)
    return replace(message, properties=message.properties | Properties(message_expiry_interval=interval))
