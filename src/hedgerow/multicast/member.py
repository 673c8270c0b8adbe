"""A member: one participant in publish/subscribe by multicast.

A machine: the application's calls, datagrams and `now` come in; datagrams, groups to be in, messages and
the next deadline come out. `Publisher` and `Subscriber` are its two halves, `Discovery` and `Peers` know who
and what there is, `Proofs` who is alive, the `Transmitter` makes datagrams. Here every frame that arrives is
checked, opened if it is sealed, and handed to the one that its kind is for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from hedgerow.message import Message
from hedgerow.multicast import frame
from hedgerow.multicast.acknowledging import StreamReceipt
from hedgerow.multicast.discovery import Discovery
from hedgerow.multicast.flow import LeftBehind
from hedgerow.multicast.frame import (
    HEADER_BYTES,
    SEALED,
    SENDER_BYTES,
    TOPIC,
    FrameError,
    FrameKind,
    Header,
    parse_header,
)
from hedgerow.multicast.groups import CONTROL_TOPIC, topic_crc
from hedgerow.multicast.incoming import Listening, SendingMember
from hedgerow.multicast.keys import Keyring, SealError
from hedgerow.multicast.limits import (
    GONE_AFTER_S,
    LINGER_S,
    MulticastLimits,
)
from hedgerow.multicast.peers import PeerAddress, Peers
from hedgerow.multicast.proofs import Datagram, Proofs
from hedgerow.multicast.publisher import Publisher
from hedgerow.multicast.random import Random
from hedgerow.multicast.stats import MulticastStats
from hedgerow.multicast.subscriber import Subscriber
from hedgerow.multicast.timers import Timers
from hedgerow.multicast.transmitter import Transmitter
from hedgerow.multicast.values import LastValues

__all__ = ["CONTROL_TOPIC", "Keyring", "Member", "MulticastLimits", "MulticastStats", "PeerAddress", "Random"]

MAX_CACHED_TOPICS = 16_384
MAX_EVENTS = 16  # between two looks at them; each is a line for people


class NotHeard(NamedTuple):
    """Somebody is there whose frames cannot be taken, most likely because of a key."""

    source: PeerAddress
    reason: str


class Missed(NamedTuple):
    """Messages of one sender that will not come."""

    topic: str
    origin: str
    messages: int


class ReceivedFrame(NamedTuple):
    """A frame that was found genuine."""

    header: Header
    body: bytes
    sender: SendingMember
    listening: Listening | None
    """The topic of ours that it is about."""
    source: PeerAddress | None
    unicast: bool
    now: float


class Member:
    def __init__(
        self,
        now: float,
        random: Random,
        *,
        keys: Keyring | None = None,
        limits: MulticastLimits | None = None,
        hears_itself: bool = True,
    ) -> None:
        limits = limits or MulticastLimits()
        self.sender = random.randbytes(SENDER_BYTES)
        self.origin = self.sender.hex()
        self.stats = MulticastStats()
        self._keys = keys
        self._hears_itself = hears_itself
        self._wanted: dict[str, bool] = {}
        self._timers = Timers()
        self.values = LastValues(limits.retained_bytes)
        self.peers = Peers(random.randbytes(32), self._multicast_at)
        self._transmitter = Transmitter(self.sender, self.stats, self.peers.find_copies)
        self._transmitter.set_keys(keys)
        self.publisher = Publisher(limits, self._transmitter, self._timers, self.values, self.stats)
        self.subscriber = Subscriber(limits, self._transmitter, self._timers, self.values, self.stats, random)
        self._discovery = Discovery(
            limits,
            self._transmitter,
            self._timers,
            self.values,
            random,
            self.publisher,
            self.subscriber,
            self.peers,
        )
        self.subscriber.on_value = self._discovery.heard_value
        self.publisher.flow.heard_at = self._heard_at
        self.proofs = Proofs(self._transmitter, self._timers, random, self.stats)
        self._published_at = float("-inf")
        self._events: list[NotHeard] = []
        self._discovery.start(now)

    # The application's side

    def check(self, message: Message) -> None:
        """RefusedError for what cannot travel by multicast, TopicError for what is no topic name."""
        self.publisher.check(message)

    def publish(self, message: Message, now: float) -> None:
        """Send a message with the next `flush`, or before; raises as `check` does."""
        message_id = self.publisher.publish(message, now)
        self._published_at = now
        if self.publisher.new_topics:
            self._discovery.announce_new(now)
        if self._hears_itself and self._is_wanted(message.topic):
            self.subscriber.messages.append(replace(message, id=message_id))
            self.stats.delivered += 1

    def _is_wanted(self, topic: str) -> bool:
        wanted = self._wanted.get(topic)
        if wanted is None:
            if len(self._wanted) >= MAX_CACHED_TOPICS:
                self._wanted.clear()
            wanted = self._wanted[topic] = self.subscriber.wants(topic)
        return wanted

    def flush(self, now: float) -> None:
        """Send what was gathered."""
        self.publisher.flush(now)

    @property
    def ready_at(self) -> float:
        """Publishing at QoS 1 and 2 should wait until then, or until `take_has_opened`."""
        return self.publisher.ready_at

    def take_has_opened(self) -> bool:
        """Whether those who wait to publish may look again before `ready_at`."""
        flow = self.publisher.flow
        has_opened, flow.has_opened = flow.has_opened, False
        return has_opened

    @property
    def unacknowledged_bytes(self) -> int:
        """Under way to the receiver that is furthest behind."""
        return self.publisher.flow.unacknowledged_bytes

    @property
    def receiver_count(self) -> int:
        """Members that acknowledge what this one publishes."""
        return len(self.publisher.flow.receivers)

    def set_receive_buffer(self, size: int) -> None:
        """How many bytes the system keeps of what arrives for one topic: no more is to be under way."""
        self.subscriber.acknowledger.receive_buffer_bytes = size

    def subscribe(self, topic_filter: str, now: float, qos: int = 1) -> None:
        """Last values follow by `take_held`. Subscribing again to the same filter counts. With QoS 0, senders
        do not wait for this member."""
        self.subscriber.subscribe(topic_filter, qos, now)
        self._wanted.clear()
        for value in self.values.match(topic_filter):
            self.subscriber.hold_again(value)
        self._discovery.subscribed(topic_filter, now)

    def unsubscribe(self, topic_filter: str, now: float, qos: int = 1) -> None:
        """With the QoS of the subscription."""
        self.subscriber.unsubscribe(topic_filter, qos, now)
        self._wanted.clear()

    def hold(self, message: Message, now: float) -> None:
        """A last value to answer with that is not sent now.
        Raises as `check` does."""
        self.publisher.check(message)
        self.values.set(message, message.published_at or 0.0)

    def add_peer(self, address: PeerAddress, now: float, sender: bytes | None = None) -> None:
        """Somebody whose multicast may not reach us, nor ours them.

        With its `sender` id it was found, not named by the user: it has time to be heard by itself before it
        is greeted. Otherwise fifty members that find each other would greet each other all at once.
        """
        is_new = self.peers.add(address, now, is_configured=sender is None, sender=sender)
        if is_new and sender is None:
            self._greet(address)

    def _greet(self, address: PeerAddress) -> None:
        hello = self.peers.hello_to(address, list(self.subscriber.filters))
        if hello is not None:
            self._discovery.send_hello(address, hello)

    def _multicast_at(self, sender_id: bytes) -> float:
        return self.subscriber.multicast_at(sender_id)

    def _heard_at(self, member: bytes) -> float:
        sender = self.subscriber.senders.get(member)
        return float("-inf") if sender is None else sender.heard_at

    def set_datagram_bytes(self, size: int) -> None:
        """The largest datagram, where the network has changed."""
        self.publisher.set_datagram_bytes(size)
        self._discovery.set_datagram_bytes(size)

    def set_keys(self, keys: Keyring | None) -> None:
        self._keys = keys
        self._transmitter.set_keys(keys)

    def finish(self, now: float) -> None:
        """Nothing more is published: those who acknowledge are asked to."""
        self.publisher.finish(now)
        self._discovery.announce_new(now)

    def is_awaited(self, now: float) -> bool:
        """Does anybody still have to acknowledge what was published?"""
        return self.publisher.flow.is_awaited(now)

    def linger_until(self, now: float) -> float:
        """Until then others may ask for what was published last, or for a proof of who did."""
        asked_for = self.publisher.sent_at
        if self._keys is not None:
            asked_for = max(asked_for, self._published_at)
        return asked_for + LINGER_S

    def leave(self, now: float) -> None:
        self.flush(now)
        self._transmitter.send_to_all(FrameKind.LEAVE)

    # What comes out

    def pause(self, is_paused: bool) -> None:
        """Whether the application takes nothing at present: the shell reads no topic's socket then, and what
        comes by other ways is not taken in either."""
        self.subscriber.is_paused = is_paused

    def take_messages(self) -> list[Message]:
        """Live messages, in order; `retain` as published."""
        messages, self.subscriber.messages = self.subscriber.messages, []
        return messages

    def take_receipt(self) -> list[StreamReceipt]:
        """All that was given since the last one, to be acknowledged when it is taken for good."""
        return self.subscriber.acknowledger.take_receipt()

    def acknowledge(self, receipt: list[StreamReceipt], now: float) -> None:
        self.subscriber.acknowledger.acknowledge(receipt, now)

    def take_missed(self) -> list[Missed]:
        missed = self.subscriber.missed
        if not missed:
            return []
        self.subscriber.missed = Counter()
        return [Missed(topic, origin, messages) for (topic, origin), messages in missed.items()]

    def take_held(self) -> list[Message]:
        """Last values for new subscriptions; and, with no payload, that there is none any more."""
        held, self.subscriber.held = self.subscriber.held, []
        return held

    def take_events(self) -> list[NotHeard]:
        events, self._events = self._events, []
        return events

    def take_left_behind(self) -> list[LeftBehind]:
        flow = self.publisher.flow
        left_behind, flow.events = flow.events, []
        return left_behind

    def address_of(self, member: bytes) -> PeerAddress | None:
        sender = self.subscriber.senders.get(member)
        return sender.address if sender is not None else None

    def take_memberships(self) -> list[tuple[str, bool]]:
        """Topics whose groups to join (True) and to leave (False), in order."""
        memberships, self.subscriber.memberships = self.subscriber.memberships, []
        return memberships

    def take_publishing(self) -> list[tuple[str, bool]]:
        """Topics that we begin (True) and cease (False) to publish to."""
        publishing, self.publisher.publishing = self.publisher.publishing, []
        return publishing

    def take_to_groups(self) -> list[tuple[str, bytes]]:
        """(topic, datagram) to send to the topic's group."""
        to_groups, self._transmitter.to_groups = self._transmitter.to_groups, []
        return to_groups

    def take_to_peers(self) -> list[tuple[PeerAddress, bytes]]:
        to_peers, self._transmitter.to_peers = self._transmitter.to_peers, []
        return to_peers

    @property
    def deadline(self) -> float:
        return self._timers.deadline

    def handle_timer(self, now: float) -> None:
        self._timers.run(now)
        self._see_to_copies()

    def _see_to_copies(self) -> None:
        if self.peers.has_changed:
            self.peers.has_changed = False
            self.publisher.forget_copies()

    # The network's side

    def receive_datagram(
        self,
        data: bytes,
        now: float,
        topic: str | None = None,
        source: PeerAddress | None = None,
        unicast: bool = False,
    ) -> None:
        """`topic`: of the group to which it came; None for the control group, and for ourselves alone."""
        self.stats.datagrams_received += 1
        try:
            self._receive(data, now, topic, source, unicast)
        except SealError as problem:
            self.stats.forged += 1
            self._note_not_heard(source, str(problem))
        except FrameError:
            self.stats.malformed += 1

    def _receive(
        self, data: bytes, now: float, topic: str | None, source: PeerAddress | None, unicast: bool
    ) -> None:
        header = parse_header(data)
        sender_id = header.sender
        if sender_id == self.sender:
            return
        listening = None
        if topic is not None:
            listening = self.subscriber.listening.get(topic)
            if listening is None:
                return  # Left meanwhile.
            if header.crc != listening.crc:
                self.stats.other_topic += 1
                return
        sender = self.subscriber.senders.get(sender_id)
        if self._keys is None:
            if header.flags & SEALED:
                self.stats.sealed += 1
                self._note_not_heard(source, "it sends sealed, and there is no key here")
                return
            body = data[HEADER_BYTES:]
            if sender is None:
                sender = self.subscriber.meet(sender_id, now)
        else:
            if not header.flags & SEALED:
                self.stats.clear += 1
                self._note_not_heard(source, "it sends without a key")
                return
            counter, body = self._keys.open(sender_id, data)
            if sender is None:
                self._receive_unproven(header, body, counter, Datagram(data, topic, source, unicast), now)
                return
            # Messages and streams are told apart by numbers of their own.
            is_new = header.kind in _NUMBERED or sender.window.accepts(counter)
            if counter <= sender.stale or not is_new:
                self.stats.replayed += 1
                return
            if header.kind == FrameKind.PRESENCE and counter > sender.presence_counter:
                sender.stale, sender.presence_counter = sender.presence_counter, counter
        if sender.heard_at < now - GONE_AFTER_S:
            self._discovery.reached_another(now)  # One of us was away, and may have missed the last values.
        sender.heard_at = now
        if not unicast:
            sender.multicast_at = now
        if source is not None and source != sender.address and header.kind not in _NUMBERED:
            sender.address = source
            self.peers.add(source, now, sender=sender_id)
        if header.flags & TOPIC:
            listening, body = self._find_listening(header, body, now)
            if listening is None:
                return
        if header.kind == _DATA:
            if listening is None:
                raise FrameError("data of no topic")
            if self.subscriber.is_paused and topic is None:
                self.stats.dropped += 1  # It will be missed, and asked for, when there is room again.
                return
            _, _, flags, _, _, stream_sequence, message_sequence = header
            self.subscriber.receive_data(
                sender, listening, flags, stream_sequence, message_sequence, body, now
            )
            return
        handle = _HANDLERS.get(header.kind)
        if handle is not None:
            handle(self, ReceivedFrame(header, body, sender, listening, source, unicast, now))

    def _receive_unproven(
        self, header: Header, body: bytes, counter: int, datagram: Datagram, now: float
    ) -> None:
        waited = self.proofs.hold(header, body, counter, datagram, now)
        if waited is None:
            return
        self.subscriber.meet(header.sender, now).stale = header.message_sequence
        for data, topic, source, unicast in waited:
            try:
                self._receive(data, now, topic, source, unicast)
            except FrameError:
                self.stats.malformed += 1

    def _find_listening(self, header: Header, body: bytes, now: float) -> tuple[Listening | None, bytes]:
        """Whether the topic that a frame carries is one of ours. A wildcard may not have known it yet."""
        topic, body = frame.parse_topic(body)
        if topic_crc(topic) != header.crc:
            raise FrameError("the CRC is of another topic")
        listening = self.subscriber.listening.get(topic)
        if listening is None and topic[:1] != "$" and self.subscriber.wants(topic):
            listening = self.subscriber.listen(topic, now)
        return listening, body

    def _note_not_heard(self, source: PeerAddress | None, reason: str) -> None:
        if source is not None and len(self._events) < MAX_EVENTS:
            self._events.append(NotHeard(source, reason))

    # By kind

    def _receive_heartbeat(self, received: ReceivedFrame) -> None:
        header, body, sender, listening, _, _, now = received
        if listening is not None:
            oldest = frame.parse_heartbeat(body)
            self.subscriber.receive_heartbeat(sender, listening, header.stream_sequence, oldest, now)

    def _receive_gone(self, received: ReceivedFrame) -> None:
        if received.listening is not None:
            gone = frame.parse_gone(received.body)
            self.subscriber.receive_gone(received.sender, received.listening, gone, received.now)

    def _receive_repair(self, received: ReceivedFrame) -> None:
        repair = frame.parse_repair(received.body)
        if repair.sender == self.sender:
            self.publisher.receive_repair(repair, received.header.crc, received.sender.id, received.now)
        elif not received.unicast:  # What the others do not hear does not speak for them.
            self.subscriber.hear_repair(repair, received.header.crc, received.now)

    def _receive_topics(self, received: ReceivedFrame) -> None:
        topics = frame.parse_names(received.body, are_filters=False)
        self._discovery.receive_topics(received.sender, topics, received.now)

    def _receive_interest(self, received: ReceivedFrame) -> None:
        self._discovery.receive_interest(frame.parse_interest(received.body), received.now)

    def _receive_hello(self, received: ReceivedFrame) -> None:
        _, body, sender, _, source, _, now = received
        if source is None:
            return
        is_new = self.peers.receive_hello(source, sender.id, frame.parse_hello(body), now)
        self._transmitter.send_to_peer(source, FrameKind.WELCOME, self.peers.cookie_for(source))
        if is_new:
            self._see_to_copies()
            self._discovery.reached_another(now)
            if self.peers.needs_copies(source, now):
                self._greet(source)  # What is deaf in one direction is as a rule deaf in both.

    def _receive_welcome(self, received: ReceivedFrame) -> None:
        source = received.source
        cookie = frame.parse_welcome(received.body)
        if source is not None and self.peers.receive_welcome(
            source, received.sender.id, cookie, received.now
        ):
            self._greet(source)

    def _receive_challenge(self, received: ReceivedFrame) -> None:
        challenge = frame.parse_challenge(received.body)
        self.proofs.answer(challenge, received.sender.id, received.now)

    def _receive_acknowledgement(self, received: ReceivedFrame) -> None:
        acknowledgement = frame.parse_acknowledgement(received.body)
        if acknowledgement.sender == self.sender:
            self.publisher.flow.receive(received.sender.id, acknowledgement, received.now)

    def _receive_ask(self, received: ReceivedFrame) -> None:
        self.subscriber.acknowledger.answer(received.sender, received.now)

    def _receive_leave(self, received: ReceivedFrame) -> None:
        self.subscriber.receive_leave(received.sender, received.now)
        self._discovery.receive_leave(received.sender, received.now)
        self.publisher.flow.forget(received.sender.id)
        if received.sender.address is not None:
            self.peers.remove(received.sender.address)
            self._see_to_copies()


_NUMBERED = frozenset((FrameKind.DATA, FrameKind.HEARTBEAT, FrameKind.GONE))

_DATA = int(FrameKind.DATA)

# DATA, of which there are the most, goes without a `ReceivedFrame`. That a PRESENCE was heard is all that it
# says, and a PROOF is news only of one that is not believed yet.
_HANDLERS: dict[int, Callable[[Member, ReceivedFrame], None]] = {
    FrameKind.HEARTBEAT: Member._receive_heartbeat,
    FrameKind.REPAIR: Member._receive_repair,
    FrameKind.GONE: Member._receive_gone,
    FrameKind.TOPICS: Member._receive_topics,
    FrameKind.INTEREST: Member._receive_interest,
    FrameKind.HELLO: Member._receive_hello,
    FrameKind.WELCOME: Member._receive_welcome,
    FrameKind.CHALLENGE: Member._receive_challenge,
    FrameKind.LEAVE: Member._receive_leave,
    FrameKind.ACKNOWLEDGEMENT: Member._receive_acknowledgement,
    FrameKind.ASK: Member._receive_ask,
}
