"""A `Member` on a real network: its sockets, its one timer, and the interfaces as they come and go.

`MulticastEndpoint` moves datagrams between sockets and the member and decides nothing about the protocol.
After each wake of the loop it asks the member once for everything that came out (`flush`). What cannot be
sent is counted and forgotten: with datagrams, that is what the network would have done.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

from hedgerow.errors import ConfigError, reason_of
from hedgerow.message import Message
from hedgerow.multicast.acknowledging import StreamReceipt
from hedgerow.multicast.groups import CONTROL_TOPIC, IPV4_GROUPS, ipv6_groups
from hedgerow.multicast.io import mdns, sockets
from hedgerow.multicast.io.group_sockets import Receivers, Senders, SocketStats
from hedgerow.multicast.io.interfaces import (
    Choice,
    can_send,
    choose,
    choose_again,
    is_loopback,
    smallest_mtu,
)
from hedgerow.multicast.io.options import MulticastOptions, name_of
from hedgerow.multicast.io.peer_names import PeerNames
from hedgerow.multicast.io.watch import InterfaceWatch
from hedgerow.multicast.keys import Keyring
from hedgerow.multicast.limits import MAX_DATAGRAM_BYTES, SCOPES, MulticastLimits, datagram_bytes
from hedgerow.multicast.member import Member
from hedgerow.multicast.peers import PeerAddress
from hedgerow.multicast.topic_groups import ComputedGroups, NamedGroups, TopicGroups
from hedgerow.node import udp
from hedgerow.node.clock import SteadyClock
from hedgerow.node.eventlog import EventLog
from hedgerow.node.values import read_utf8

logger = logging.getLogger(__name__)

_GATHER_AT_ONCE = 64  # publications of one turn of the loop before full datagrams among them leave
_LONGEST = MAX_DATAGRAM_BYTES + 1_024  # One that is cut here does not open, or is malformed.

_REJOIN_S = 1.0
_LINGER_AT_MOST_S = 5.0  # for those who ask; whoever acknowledges is waited for as long as ever
_LINGER_STEP_S = 0.02
_LOOK_AT_DROPS_S = 5.0
MAX_UNTAKEN_BYTES = 32 * 1024 * 1024  # of messages that the application was given and has not taken for good
MESSAGE_BYTES = 400  # what one takes beside its payload
_TENTATIVE_S = 3.0  # Duplicate address detection takes 1 to 2.


class MulticastEndpoint:
    """To be made, started and stopped on a running loop.

    `on_messages` is given what arrives, and what this member itself publishes if it `hears_itself` and has
    subscribed to it; `on_held`, if it is set, the last values that new subscriptions are told.

    What `on_messages` was given counts as taken when it returns, and senders hear that it was. Where that is
    too early, `when_taken` is set: it is given what to call when all that came so far is taken for good.
    """

    def __init__(self, options: MulticastOptions, *, hears_itself: bool = True) -> None:
        self.options = options
        self.on_messages: Callable[[list[Message]], None] = lambda messages: None
        self.on_held: Callable[[list[Message]], None] | None = None
        self.when_taken: Callable[[Callable[[], None]], None] | None = None
        self.on_missed: Callable[[str, int], None] = lambda topic, messages: None
        """Messages at QoS 1 or 2 of this topic that will not come."""
        self.on_opened: Callable[[], None] = lambda: None
        """Those who wait for `Member.ready_at` may look again."""
        self.stats = SocketStats()
        self._event_log = EventLog(logger)
        self.member: Member
        self.clock = SteadyClock()
        self._hears_itself = hears_itself
        self._loop = asyncio.get_running_loop()
        self._choice = Choice(options.ip or 6, ())
        self._is_started = False
        self._is_away = False
        self._reopening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._drop_watch = udp.DropWatch()
        self._drop_timer: asyncio.TimerHandle | None = None
        self._is_wanting = True
        self._is_reading = True
        self._untaken_bytes = 0
        self._is_gathering = False
        self._gathered = 0
        self._keys: Keyring | None = None
        self._hearing: set[str] = set()
        self._publishing: set[str] = set()
        # Made by `start`.
        self._own: socket.socket | None = None
        self.groups: TopicGroups
        self.receivers: Receivers
        self.senders: Senders
        self.multicast_dns: mdns.MulticastDns
        self._peer_names: PeerNames | None = None
        self._watch: InterfaceWatch

    @property
    def ip(self) -> int:
        return self._choice.ip

    @property
    def name(self) -> str:
        """For people: the URL with the interfaces that are in use."""
        in_use = [each.name for each in self._choice.interfaces]
        return name_of(in_use or self.options.interfaces, self.options.port)

    @property
    def _how(self) -> str:
        naming = "groups by multicast DNS" if self.options.has_names(self.ip) else "computed groups"
        return f"IPv{self.ip} and {naming}"

    @property
    def own_port(self) -> int:
        """Where single datagrams reach this member."""
        assert self._own is not None
        return int(self._own.getsockname()[1])

    @property
    def overruns(self) -> int:
        """Datagrams that arrived, and found a socket's buffer full."""
        return self.receivers.overruns

    @property
    def receive_buffer_bytes(self) -> int:
        """What the system gave to each of the sockets that hear topics; the least, where they differ."""
        return self.receivers.granted_bytes

    # From start to stop.

    async def start(self) -> None:
        """Open the sockets. Raises ConfigError saying what this machine or its network lacks."""
        keys = self._keys = self.read_keys()
        # From before the first look at the interfaces, so that no change is missed.
        self._watch = InterfaceWatch(self._look_at_interfaces)
        try:
            self._choose_and_open(keys)
        except BaseException:
            self._watch.stop()
            raise
        options = self.options
        self._is_started = True
        try:
            self._peer_names = PeerNames(options.peers, options.port + 1, self._choice, self._add_peer)
            await self._until_it_can_send()
        except BaseException:
            await self._end()
            await self.multicast_dns.stop()
            raise
        logger.info("%s: with %s, as %s, port %d", self.name, self._how, self.member.origin, self.own_port)
        if not options.interfaces and is_loopback(self._choice):
            logger.warning("%s: no network but this machine's own: only programs here are heard", self.name)
        if keys is None:
            say_in_clear()
        self._look_at_drops()
        self.flush()

    async def _until_it_can_send(self) -> None:
        """An IPv6 address that was given to an interface just now cannot be sent from for a second or two,
        and a command would be done by then."""
        give_up_at = self.clock() + _TENTATIVE_S
        while not can_send(self._choice, self.options) and self.clock() < give_up_at:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # The kernel tells nobody who did not ask by netlink.

    def _choose_and_open(self, keys: Keyring | None) -> None:
        self._choice = choose(self.options)
        limits = MulticastLimits(
            payload_bytes=self.options.max_payload,
            patience_s=self.options.patience_s,
            datagram_bytes=datagram_bytes(smallest_mtu(self._choice)),
            new_topic_s=1.0 if self.options.has_names(self.ip) else 0.5,
        )
        self.member = Member(
            self.clock(), random.SystemRandom(), keys=keys, limits=limits, hears_itself=self._hears_itself
        )
        self._open()

    def _open(self) -> None:
        """What depends on the IP version."""
        ip, _ = self._choice
        options = self.options
        topics = None
        if options.has_names(ip):
            mdns.check_port(ip)
            groups = IPV4_GROUPS if ip == 4 else ipv6_groups(SCOPES[options.scope])
            prints = None if self._keys is None else self._keys.prints
            self.groups = topics = NamedGroups(groups, random.SystemRandom().random, prints=prints)
        else:
            self.groups = ComputedGroups(options.scope)
        self.receivers = Receivers(self._choice, options.port, self.stats, self._read)
        self.senders = Senders(
            self._choice, options.port, options.scope, self.stats, self.groups.group_to_send
        )
        try:
            self._own = sockets.open_own(ip, options.port + 1, options.scope)
        except OSError as error:
            raise ConfigError(f"{self.name}: {reason_of(error)}") from None
        if not self.receivers.hear(CONTROL_TOPIC, (self.groups.control_group,)):
            self._close_sockets()
            raise ConfigError(f"{self.name}: the members' common group could not be joined")
        self._loop.add_reader(self._own, self._read_own)
        self.multicast_dns = mdns.MulticastDns(
            self._choice, options.port, self.own_port, self.member.sender, self.clock,
            self._add_peer, topics, self._regroup,
        )  # fmt: skip

    async def stop(self) -> None:
        """Leave. What was published stays to be had for a moment by those who missed it."""
        if not self._is_started:
            return
        self._watch.stop()
        self.member.finish(self.clock())
        self.flush()
        # Farewells take a while too. Who has heard of a group goes on listening there.
        ending = self._loop.create_task(self.multicast_dns.stop())
        try:
            begun_at = self.clock()
            # As long as somebody has to acknowledge something, or asks for what it lacks.
            while self._is_lingering(begun_at, self.clock()):  # noqa: ASYNC110
                await asyncio.sleep(_LINGER_STEP_S)
        finally:
            self.member.leave(self.clock())
            self.flush()
            await self._end()
            await ending

    def _is_lingering(self, begun_at: float, now: float) -> bool:
        if self.member.is_awaited(now):
            return now < begun_at + self.options.patience_s
        return now < min(self.member.linger_until(now), begun_at + _LINGER_AT_MOST_S)

    async def _end(self) -> None:
        self._is_started = False
        if self._drop_timer is not None:
            self._drop_timer.cancel()
            self._look_at_drops()
        self._watch.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._close_sockets()
        if self._peer_names is not None:
            await self._peer_names.stop()
        if self._reopening is not None:
            await self._reopening

    def _close_sockets(self) -> None:
        self.receivers.close()
        self.senders.close()
        if self._own is not None:
            self._loop.remove_reader(self._own)
            self._own.close()
            self._own = None

    def set_keys(self, keys: Keyring | None) -> None:
        """Those that `read_keys` has read again."""
        if self.options.key_file is not None:
            self._keys = keys
            self.member.set_keys(keys)
            if isinstance(self.groups, NamedGroups):
                self.groups.set_prints(None if keys is None else keys.prints, self.clock())
                self.multicast_dns.flush()
            self.flush()

    def read_keys(self) -> Keyring | None:
        """Raises ConfigError."""
        path = self.options.key_file
        if path is None:
            return None
        keys = Keyring.parse(read_utf8(path), str(path))
        if path.stat().st_mode & 0o077:
            logger.warning("%s: others on this machine may read the keys; chmod 600 %s", path, path)
        return keys

    # What comes in.

    def _read(self, receiver: socket.socket, topic: str) -> None:
        """Something arrived at a group's socket. What it is about is known from the socket; only in the
        common group does it matter who sent it."""
        if topic == CONTROL_TOPIC:
            self._read_with_source(receiver, unicast=False)
            return
        receive = self.member.receive_datagram
        now = self.clock()
        for data in udp.read_turn(receiver.recv, _LONGEST):
            receive(data, now, topic)
        self.flush()

    def _read_own(self) -> None:
        if self._own is not None:
            self._read_with_source(self._own, unicast=True)

    def _read_with_source(self, receiver: socket.socket, unicast: bool) -> None:
        receive = self.member.receive_datagram
        now = self.clock()
        for data, source in udp.read_turn(receiver.recvfrom, _LONGEST):
            receive(data, now, None, source, unicast)
        self.flush()

    def set_reading(self, reading: bool) -> None:
        """Whether to take what arrives for the topics heard. When it is not taken, senders at QoS 1 and 2
        wait; what others send stays with the system, which drops it when it has no more room."""
        self._is_wanting = reading
        self._regulate()

    def _regulate(self) -> None:
        most = MAX_UNTAKEN_BYTES if self._is_reading else MAX_UNTAKEN_BYTES // 2
        reading = self._is_wanting and self._untaken_bytes <= most
        if reading is not self._is_reading:
            self._is_reading = reading
            self.receivers.set_reading(reading)
            self.member.pause(not reading)

    def _look_at_drops(self) -> None:
        now = self.clock()
        granted = self.receive_buffer_bytes
        self.member.set_receive_buffer(granted)
        dropped = self._drop_watch.look(self.name, self.overruns, granted)
        if dropped is not None:
            self._event_log.write(dropped, now)
        if self._is_started:
            self._drop_timer = self._loop.call_later(_LOOK_AT_DROPS_S, self._look_at_drops)

    def _add_peer(self, address: PeerAddress, sender: bytes | None = None) -> None:
        if self._is_started:
            self.member.add_peer(address, self.clock(), sender)
            self.flush()

    # What goes out.

    def publish(self, message: Message) -> None:
        """The first publication of a turn of the loop leaves at once. Those after it gather until the
        turn's end, and leave together, or as soon as a datagram is full. Raises as `Member.check`."""
        self.member.publish(message, self.clock())
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_soon(self._end_turn)
            self.flush()
            return
        self._gathered += 1
        if self._gathered % _GATHER_AT_ONCE == 0:
            self._drain()

    def _end_turn(self) -> None:
        # After a turn with several, the next one's first is gathered too: whoever publishes without a pause
        # would send a datagram with one message in every turn.
        self._is_gathering = self._gathered > 0
        if self._is_gathering:
            self._loop.call_soon(self._end_turn)
        self._gathered = 0
        self.flush()

    def flush(self) -> None:
        """Do everything that the member wants done. To be called after whatever was asked of it."""
        if self._is_started:
            self.member.flush(self.clock())
            self._drain()

    def _drain(self) -> None:
        member = self.member
        memberships, publishing = member.take_memberships(), member.take_publishing()
        if memberships or publishing:
            self._change_topics(memberships, publishing)
        to_groups = member.take_to_groups()
        if to_groups:
            self._send_to_groups(to_groups)
        for address, datagram in member.take_to_peers():
            self._send_to_peer(address, datagram)
        if member.deadline < self._timer_at:
            self._set_timer()
        receipt, messages = member.take_receipt(), member.take_messages()
        if messages:
            self.on_messages(messages)
        if receipt:
            self._hand_over(receipt, messages)
        for topic, origin, count in member.take_missed():
            self._event_log.write(MessagesMissed(topic, origin, count), self.clock())
            self.on_missed(topic, count)
        for receiver, why in member.take_left_behind():
            address = member.address_of(receiver)
            host = address[0] if isinstance(address, tuple) else receiver.hex()
            self._event_log.write(ReceiverLeftBehind(str(host), why), self.clock())
        if member.take_has_opened():
            self.on_opened()
        for event in member.take_events():
            host = event.source[0] if isinstance(event.source, tuple) else event.source
            self._event_log.write(MemberNotHeard(str(host), event.reason), self.clock())
        held = member.take_held()
        if held:
            (self.on_held or self.on_messages)(held)

    def _hand_over(self, receipt: list[StreamReceipt], messages: list[Message]) -> None:
        """The application has these messages, and what else had its turn with them."""
        if self.when_taken is None:
            self._acknowledge(receipt)
            return
        size = sum([len(message.payload) for message in messages]) + MESSAGE_BYTES * len(messages)
        self._untaken_bytes += size
        self.when_taken(partial(self._taken, receipt, size))
        self._regulate()

    def _taken(self, receipt: list[StreamReceipt], size: int) -> None:
        self._untaken_bytes -= size
        if self._is_started:
            self._regulate()
            self._acknowledge(receipt)

    def _acknowledge(self, receipt: list[StreamReceipt]) -> None:
        self.member.acknowledge(receipt, self.clock())
        if self.member.deadline < self._timer_at:
            self._set_timer()

    def _send_to_groups(self, datagrams: list[tuple[str, bytes]]) -> None:
        known = self.senders.sends
        for topic, datagram in datagrams:
            sends = known.get(topic)
            if sends is None:
                if topic == CONTROL_TOPIC:
                    self._send_to_control_group(datagram)
                    continue
                sends = self.senders.open(topic)
            try:
                for send in sends:
                    send(datagram)
            except OSError:
                self.senders.send_each(sends, datagram)

    def _send_to_control_group(self, datagram: bytes) -> None:
        """From our own socket, which tells the others where we can be reached."""
        ip, interfaces = self._choice
        group = self.groups.control_group
        if self._own is None:
            self.stats.send_errors += 1
            return
        for interface in interfaces:
            try:
                sockets.set_interface(self._own, ip, interface)
                self._own.sendto(datagram, sockets.group_address(ip, group, self.options.port, interface))
            except OSError:
                self.stats.send_errors += 1

    def _send_to_peer(self, address: Any, datagram: bytes) -> None:
        try:
            if self._own is not None:
                self._own.sendto(datagram, address)
        except (OSError, TypeError):
            # TypeError: an address of IPv4, from before IPv6 came up.
            self.stats.send_errors += 1

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self.member.deadline
        self._timer = self._loop.call_later(max(0.0, self._timer_at - self.clock()), self._handle_timer)

    def _handle_timer(self) -> None:
        self._timer_at = float("inf")
        self.member.handle_timer(self.clock())
        self.flush()

    # Topics and their groups.

    def _change_topics(self, memberships: list[tuple[str, bool]], publishing: list[tuple[str, bool]]) -> None:
        groups, now = self.groups, self.clock()
        for topic, is_member in memberships:
            groups.set_hearing(topic, is_member, now)
            if is_member:
                self._hearing.add(topic)
                self.receivers.hear(topic, groups.groups_to_hear(topic))
            else:
                self._hearing.discard(topic)
                self.receivers.forget(topic)
        for topic, is_publisher in publishing:
            groups.set_publishing(topic, is_publisher, now)
            if is_publisher:
                self._publishing.add(topic)
            else:
                self._publishing.discard(topic)
                self.senders.forget(topic)
        self.multicast_dns.flush()

    def _regroup(self, topics: list[str]) -> None:
        """Multicast DNS has found out more about where these topics are."""
        if not self._is_started:
            return  # It hears others until its own end: a group that is joined now would be left by nobody.
        for topic in topics:
            self.senders.look_again(topic)
            if topic in self._hearing:
                self.receivers.hear(topic, self.groups.groups_to_hear(topic))

    # Interfaces that come and go.

    def _look_at_interfaces(self) -> None:
        choice = choose_again(self.options, self._choice)
        if choice is None:
            if not self._is_away:
                logger.warning("%s: no interface is left; waiting for one", self.name)
            self._is_away = True
            return
        self.member.set_datagram_bytes(datagram_bytes(smallest_mtu(choice)))
        if choice == self._choice and not self._is_away:
            return
        self._is_away = False
        before, self._choice = self._choice, choice
        if choice.ip != before.ip or self._own is None:
            self._reopen()
            return
        logger.info("%s: the interfaces have changed", self.name)
        if not self.receivers.set_choice(choice):
            # An interface that has just come up may refuse at first.
            self._is_away = True
            self._loop.call_later(_REJOIN_S, self._look_again)
        self.senders.set_choice(choice)
        self.multicast_dns.set_choice(choice)

    def _look_again(self) -> None:
        if self._is_started:
            self._look_at_interfaces()

    def _reopen(self) -> None:
        """IPv6 has come up, and it is where the others are."""
        self._close_sockets()
        multicast_dns = self.multicast_dns
        try:
            self._open()
        except ConfigError as error:
            logger.warning("%s; waiting for that to change", error)
            self._is_away = True
            return
        logger.info("%s: with %s now", self.name, self._how)
        self._reopening = self._loop.create_task(multicast_dns.stop())
        self._change_topics(
            [(topic, True) for topic in self._hearing], [(topic, True) for topic in self._publishing]
        )


@dataclass(slots=True)
class MemberNotHeard:
    level: ClassVar[int] = logging.WARNING
    lines_a_minute: ClassVar[int] = 1
    address: str
    reason: str

    def __str__(self) -> str:
        return f"{self.address} is not heard: {self.reason} (--multicast-key FILE, the same for all)"


@dataclass(slots=True)
class MessagesMissed:
    """Senders do not wait for ever, nor keep what they sent."""

    level: ClassVar[int] = logging.WARNING
    topic: str
    address: str
    """The origin."""
    count: int

    def __str__(self) -> str:
        return f"missed {self.count} messages of {self.topic} from {self.address}: they are gone"


@dataclass(slots=True)
class ReceiverLeftBehind:
    level: ClassVar[int] = logging.WARNING
    address: str
    why: str

    def __str__(self) -> str:
        return f"receiver {self.address} is left behind: {self.why} (multicast.patience)"


@cache
def say_in_clear() -> None:
    """Once per process, however many members it has."""
    logger.warning(
        "multicast without a key is in clear: anyone on the network can read it and publish; "
        "--multicast-key FILE seals it"
    )
