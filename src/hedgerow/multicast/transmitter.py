"""From a frame to datagrams: sealed if there is a key, and to whom.

A frame about a topic goes to the topic's group. While the topic is new it goes to the control group as
well, where those listen who have yet to join; and to single peers that said they do not hear our
multicast. Both kinds of copies carry the topic, which a group's address tells otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from hedgerow.multicast.frame import TOPIC, FrameKind, pack_header, pack_topic
from hedgerow.multicast.groups import CONTROL_TOPIC
from hedgerow.multicast.keys import Keyring, Sealer
from hedgerow.multicast.outgoing import OutgoingTopic
from hedgerow.multicast.peers import PeerAddress
from hedgerow.multicast.stats import MulticastStats


class Transmitter:
    def __init__(
        self,
        sender: bytes,
        stats: MulticastStats,
        find_copies: Callable[[str | None], tuple[PeerAddress, ...]],
    ) -> None:
        self.sender = sender
        self.to_groups: list[tuple[str, bytes]] = []
        self.to_peers: list[tuple[PeerAddress, bytes]] = []
        self._stats = stats
        self._find_copies = find_copies
        self._sealer: Sealer | None = None
        self._last_sealer: Sealer | None = None
        self._counters = (0, 0)  # of the last two presences

    def set_keys(self, keys: Keyring | None) -> None:
        # A key that comes back later must not count from 1 again.
        self._last_sealer = self._sealer or self._last_sealer
        self._sealer = None if keys is None else keys.sealer(self.sender, self._last_sealer)

    def send_presence(self) -> None:
        self._counters = (self._counters[1], self._sealer.counter if self._sealer else 0)
        self.send_to_all(FrameKind.PRESENCE)

    @property
    def stale_counter(self) -> int:
        """Frames sealed up to this one are some seconds old: who hears one now hears a recording."""
        return self._counters[0]

    def send_to_topic(
        self,
        outgoing: OutgoingTopic,
        kind: FrameKind,
        flags: int,
        stream_sequence: int,
        message_sequence: int,
        body: bytes,
        now: float,
    ) -> None:
        header = pack_header(kind, flags, outgoing.crc, self.sender, stream_sequence, message_sequence)
        self._send(outgoing.topic, header, body)
        if outgoing.copy_to is None:
            outgoing.copy_to = self._find_copies(outgoing.topic)
        if now < outgoing.new_until or outgoing.copy_to:
            flags |= TOPIC
            header = pack_header(kind, flags, outgoing.crc, self.sender, stream_sequence, message_sequence)
            body = pack_topic(outgoing.topic) + body
            if now < outgoing.new_until:
                self._send(CONTROL_TOPIC, header, body)
            for address in outgoing.copy_to:
                self._send_copy(address, header, body)

    def send_to_all(
        self,
        kind: FrameKind,
        body: bytes = b"",
        flags: int = 0,
        crc: int = 0,
        message_sequence: int = 0,
    ) -> None:
        """To the control group, and those who do not hear it."""
        header = pack_header(kind, flags, crc, self.sender, 0, message_sequence)
        self._send(CONTROL_TOPIC, header, body)
        for address in self._find_copies(None):
            self._send_copy(address, header, body)

    def send_to_peer(self, address: PeerAddress, kind: FrameKind, body: bytes) -> None:
        self._send_copy(address, pack_header(kind, 0, 0, self.sender), body)

    def _send(self, topic: str, header: bytes, body: bytes) -> None:
        self._stats.datagrams_sent += 1
        data = header + body if self._sealer is None else self._sealer.seal(header, body)
        self.to_groups.append((topic, data))

    def _send_copy(self, address: PeerAddress, header: bytes, body: bytes) -> None:
        self._stats.copies_sent += 1
        # Sealed for each: a counter that comes twice is a replay.
        data = header + body if self._sealer is None else self._sealer.seal(header, body)
        self.to_peers.append((address, data))
