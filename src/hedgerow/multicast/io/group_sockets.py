"""The groups of a member: those that it hears, and those that it sends to.

`Receivers` keeps the sockets of the topics heard, `Senders` those of the topics published to most
lately. Both know topics and groups; what is in the datagrams is not their business.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from hedgerow.errors import reason_of
from hedgerow.multicast.groups import CONTROL_TOPIC
from hedgerow.multicast.io import sockets
from hedgerow.multicast.io.interfaces import Choice
from hedgerow.multicast.limits import MulticastLimits
from hedgerow.node import udp

logger = logging.getLogger(__name__)

MAX_GROUPS = MulticastLimits().groups  # heard at once, for wildcards and others alike
MAX_SENDERS = 256  # topics whose sockets to send with stay open

Send = Callable[[bytes], int]


@dataclass(slots=True)
class SocketStats:
    """What the sockets did not do."""

    send_errors: int = 0
    """Datagrams that the system refused: no buffer, no route, the interface is away."""
    unresolved: int = 0
    """Datagrams to a topic whose group is not known yet; its first messages go another way too."""
    groups_refused: int = 0
    """Groups that could not be joined: too many, or the system said no."""


class Receivers:
    """`read(socket, topic)` is called when something has arrived at a socket of the topic."""

    def __init__(
        self,
        choice: Choice,
        port: int,
        stats: SocketStats,
        read: Callable[[socket.socket, str], None],
        max_groups: int = MAX_GROUPS,
    ) -> None:
        self.opened: dict[tuple[str, str], list[socket.socket]] = {}
        """By topic and group, one for each interface."""
        self._choice = choice
        self._port = port
        self._stats = stats
        self._read = read
        self._max_groups = max_groups
        self._loop = asyncio.get_running_loop()
        self._groups: dict[str, tuple[str, ...]] = {}
        self._is_reading = True
        self._closed_overruns = 0
        self._complained: set[str] = set()

    @property
    def topics(self) -> list[str]:
        return list(self._groups)

    @property
    def overruns(self) -> int:
        """Datagrams that arrived, and found a socket's buffer full."""
        opened = [each for receivers in self.opened.values() for each in receivers]
        return self._closed_overruns + sum(map(udp.count_dropped, opened))

    @property
    def granted_bytes(self) -> int:
        """The smallest receive buffer that the system gave to one of the sockets."""
        opened = (each for receivers in self.opened.values() for each in receivers)
        return min(map(udp.granted_bytes, opened), default=0)

    def hear(self, topic: str, groups: Iterable[str]) -> bool:
        """Hear a topic at these groups and no others; none may be known yet. False when one of them could
        not be joined."""
        before = self._groups.get(topic, ())
        now = self._groups[topic] = tuple(groups)
        opened = [self._open(topic, group) for group in now if group not in before]
        for group in before:
            if group not in now:
                self._close(topic, group)
        return all(opened)

    def forget(self, topic: str) -> None:
        for group in self._groups.pop(topic, ()):
            self._close(topic, group)

    def set_choice(self, choice: Choice) -> bool:
        """The interfaces have changed: every group is joined anew. False when one could not be."""
        self._choice = choice
        for topic, group in list(self.opened):
            self._close(topic, group)
        opened = [self._open(topic, group) for topic, groups in self._groups.items() for group in groups]
        return all(opened)

    def set_reading(self, reading: bool) -> None:
        """Whether to take what arrives, or to leave it to the sockets' buffers, and when they are full to
        the system to drop it. The control group is read always: others ask there for what we publish."""
        self._is_reading = reading
        for (topic, _), receivers in self.opened.items():
            if topic != CONTROL_TOPIC:
                for receiver in receivers:
                    if reading:
                        self._loop.add_reader(receiver, partial(self._read, receiver, topic))
                    else:
                        self._loop.remove_reader(receiver)

    def close(self) -> None:
        for topic in self.topics:
            self.forget(topic)

    def _open(self, topic: str, group: str) -> bool:
        if len(self.opened) >= self._max_groups:
            self._refuse(f"{self._max_groups} topics are heard already: further ones are not")
            return False
        try:
            opened = sockets.open_receivers(*self._choice, group, self._port)
        except OSError as error:
            if error.errno == errno.EMFILE:
                self._refuse("too many open files: raise the limit (ulimit -n), each topic heard takes one")
            else:
                self._refuse(f"a multicast group could not be joined: {reason_of(error)}")
            return False
        self.opened[topic, group] = opened
        if self._is_reading or topic == CONTROL_TOPIC:
            for receiver in opened:
                self._loop.add_reader(receiver, partial(self._read, receiver, topic))
        return True

    def _close(self, topic: str, group: str) -> None:
        for receiver in self.opened.pop((topic, group), ()):
            self._loop.remove_reader(receiver)
            self._closed_overruns += udp.count_dropped(receiver)
            receiver.close()

    def _refuse(self, reason: str) -> None:
        self._stats.groups_refused += 1
        if reason not in self._complained:
            self._complained.add(reason)
            logger.warning("%s", reason)


class Senders:
    """`find_group(topic)` says where a topic is; None as long as nobody knows."""

    def __init__(
        self,
        choice: Choice,
        port: int,
        scope: str,
        stats: SocketStats,
        find_group: Callable[[str], str | None],
        max_senders: int = MAX_SENDERS,
    ) -> None:
        self.opened: dict[str, list[socket.socket]] = {}
        self.open_sender: Callable[..., socket.socket] = sockets.open_sender
        self._choice = choice
        self._port = port
        self._scope = scope
        self._stats = stats
        self._find_group = find_group
        self._max_senders = max_senders
        self._groups: dict[str, str] = {}
        self.sends: dict[str, list[Send]] = {}
        """By topic, one for each interface; `open` finds what is missing here."""

    def open(self, topic: str) -> list[Send]:
        group = self._find_group(topic)
        if group is None:
            self._stats.unresolved += 1
            return []
        if len(self.sends) >= self._max_senders:
            self.forget(next(iter(self.sends)))
        opened = []
        ip, interfaces = self._choice
        for interface in interfaces:
            try:
                opened.append(self.open_sender(ip, group, self._port, interface, self._scope))
            except OSError:
                self._stats.send_errors += 1
        if not opened:
            return []  # Not remembered: it is tried again with the next datagram.
        self.opened[topic] = opened
        self._groups[topic] = group
        sends = self.sends[topic] = [each.send for each in opened]
        return sends

    def send_each(self, sends: list[Send], datagram: bytes) -> None:
        """Send again what one interface refused: a copy on the others does no harm."""
        for send in sends:
            try:
                send(datagram)
            except OSError:
                self._stats.send_errors += 1

    def look_again(self, topic: str) -> None:
        """The topic may be found at another group now."""
        if topic in self._groups and self._find_group(topic) != self._groups[topic]:
            self.forget(topic)

    def forget(self, topic: str) -> None:
        self.sends.pop(topic, None)
        self._groups.pop(topic, None)
        for sender in self.opened.pop(topic, ()):
            sender.close()

    def set_choice(self, choice: Choice) -> None:
        self._choice = choice
        self.close()

    def close(self) -> None:
        for topic in list(self.sends):
            self.forget(topic)
