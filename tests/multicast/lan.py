"""A network of members on a virtual clock: delay, loss, cuts and filters, with no socket and no waiting."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush

from hedgerow.message import Message
from hedgerow.multicast.frame import parse_header
from hedgerow.multicast.groups import CONTROL_TOPIC
from hedgerow.multicast.keys import Keyring
from hedgerow.multicast.limits import WINDOW_FRAME_BYTES, MulticastLimits
from hedgerow.multicast.member import Member, Missed

START_AT = 1_700_000_000.0
SETTLED_S = 1.0  # subscriptions are asked for and answered
NO_LONGER_NEW_S = 1.5  # a topic's messages go to its group alone
REPAIRED_S = 8.0  # every gap is filled, or given up


def kind_of(data: bytes) -> int:
    return parse_header(data).kind


class Host:
    """A member, what it has got, and what the network does to it."""

    def __init__(self, lan: Lan, number: int, member: Member) -> None:
        self.lan = lan
        self.number = number
        self.member = member
        self.groups: set[str] = set()
        self.messages: list[Message] = []
        self.held: list[Message] = []
        self.is_plugged = True
        self.hears_multicast = True
        self.is_taking = True
        """Its application is done with what it gets as soon as it has it."""
        self.missed: list[Missed] = []
        self.loss = 0.0
        self.service_s = 0.0
        """How long it is busy with a datagram."""
        self.buffer_bytes = 1 << 20
        """Of datagrams that wait for that, as the system counts them: beyond it they are dropped."""
        self.dropped = 0
        self.busy_until = 0.0
        self.buffered = 0

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        self.send(Message(topic, payload, qos, retain))

    def send(self, *messages: Message) -> None:
        """In one turn."""
        for message in messages:
            self.member.publish(message, self.lan.now)
        self.member.flush(self.lan.now)
        self.lan.drain(self)

    def subscribe(self, *topic_filters: str) -> None:
        for topic_filter in topic_filters:
            self.member.subscribe(topic_filter, self.lan.now)
        self.lan.drain(self)

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]


class Lan:
    """Datagrams take `delay_s`. Everything random comes from `seed`."""

    def __init__(self, seed: int = 0, delay_s: float = 0.0005) -> None:
        self.now = START_AT
        self.random = random.Random(seed)
        self.delay_s = delay_s
        self.hosts: list[Host] = []
        self.sent: Counter[int] = Counter()
        """Datagrams by kind."""
        self.drop: Callable[[Host, bytes], bool] = lambda host, data: False
        self.tapped: list[tuple[str | None, bytes]] = []
        """Every multicast datagram, for those who play them back."""
        self._queue: list[tuple[float, int, Host, bytes, str | None, int, bool, bool]] = []
        self._count = 0

    def host(self, keys: Keyring | None = None, limits: MulticastLimits | None = None) -> Host:
        member = Member(self.now, self.random, keys=keys, limits=limits)
        host = Host(self, len(self.hosts), member)
        self.hosts.append(host)
        self.drain(host)
        return host

    def drain(self, host: Host) -> None:
        """Take everything that the member has to say."""
        member = host.member
        for topic, joined in member.take_memberships():
            (host.groups.add if joined else host.groups.discard)(topic)
        member.take_publishing()
        if host.is_taking:
            member.acknowledge(member.take_receipt(), self.now)
        host.messages += member.take_messages()
        host.missed += member.take_missed()
        host.held += member.take_held()
        for topic, data in member.take_to_groups():
            self.sent[kind_of(data)] += 1
            self.tapped.append((topic, data))
            if not host.is_plugged:
                continue
            for other in self.hosts:
                if other is not host:
                    self._send(other, data, None if topic == CONTROL_TOPIC else topic, host.number, False)
        for address, data in member.take_to_peers():
            assert isinstance(address, int)
            if host.is_plugged and address < len(self.hosts):
                self._send(self.hosts[address], data, None, host.number, True)

    def _send(self, to: Host, data: bytes, topic: str | None, source: int, unicast: bool) -> None:
        self._count += 1
        heappush(self._queue, (self.now + self.delay_s, self._count, to, data, topic, source, unicast, False))

    def run(self, duration_s: float) -> None:
        """Let time pass."""
        end = self.now + duration_s
        while True:
            timers = [(host.member.deadline, host.number) for host in self.hosts]
            timer_at, number = min(timers, default=(float("inf"), 0))
            datagram_at = self._queue[0][0] if self._queue else float("inf")
            if min(timer_at, datagram_at) > end:
                break
            if datagram_at <= timer_at:
                self._arrive()
            else:
                self.now = max(self.now, timer_at)
                self.hosts[number].member.handle_timer(self.now)
                self.drain(self.hosts[number])
        self.now = end

    def _wait_for_service(
        self, host: Host, data: bytes, topic: str | None, source: int, unicast: bool
    ) -> None:
        size = len(data) + WINDOW_FRAME_BYTES
        if host.buffered + size > host.buffer_bytes:
            host.dropped += 1
            return
        host.buffered += size
        host.busy_until = max(host.busy_until, self.now) + host.service_s
        self._count += 1
        served = (host.busy_until, self._count, host, data, topic, source, unicast, True)
        heappush(self._queue, served)

    def _arrive(self) -> None:
        at, _, host, data, topic, source, unicast, is_served = heappop(self._queue)
        self.now = max(self.now, at)
        if not host.is_plugged or not (unicast or host.hears_multicast):
            return
        if topic is not None and topic not in host.groups:
            return
        if not is_served and (self.random.random() < host.loss or self.drop(host, data)):
            return
        if host.service_s:
            if not is_served:
                self._wait_for_service(host, data, topic, source, unicast)
                return
            host.buffered -= len(data) + WINDOW_FRAME_BYTES
        host.member.receive_datagram(
            data, self.now, topic, source if topic is None else None, unicast=unicast
        )
        self.drain(host)


def filtered(lan: Lan) -> tuple[Host, Host]:
    """Two hosts that only single datagrams reach."""
    hosts = lan.host(), lan.host()
    for host in hosts:
        host.hears_multicast = False
    return hosts
