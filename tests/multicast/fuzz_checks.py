"""A member among strangers who say anything: what tests/fuzz/fuzz_frame.py and the ordinary tests check.

Nothing is raised, whatever comes; what the member counts is what it holds; no table outgrows its bound.
"""

from __future__ import annotations

import random

from hedgerow.message import Message
from hedgerow.multicast import frame, limits
from hedgerow.multicast.frame import HEADER_BYTES, Challenge, FrameKind
from hedgerow.multicast.keys import Keyring, Sealer
from hedgerow.multicast.limits import MulticastLimits
from hedgerow.multicast.member import Member
from hedgerow.topics import validate_name
from tests.multicast.lan import START_AT

STRANGERS = tuple(bytes((number,)) * 8 for number in range(1, 5))
TOPICS = ("t", "home/vacuum", "home/mop")
LIMITS = MulticastLimits(
    payload_bytes=3_000,
    datagram_bytes=300,
    history_bytes=20_000,
    waiting_bytes=20_000,
    retained_bytes=20_000,
    groups=8,
)


class Siege:
    """With a key, the strangers are members who have it too: what they say is sealed, and they prove
    themselves when asked."""

    def __init__(self, has_key: bool) -> None:
        self.now = START_AT
        keys = Keyring.parse(f"1 {'ab' * 32}", "keys") if has_key else None
        self.member = Member(self.now, random.Random(1), keys=keys, limits=LIMITS)
        self._keys = keys
        self._sealers: dict[bytes, Sealer] = {}
        self.member.subscribe("t", self.now)
        self.member.subscribe("home/#", self.now)
        for topic in TOPICS:
            self.publish(topic, 400)
        self._drain()

    def publish(self, topic: str, size: int) -> None:
        self.member.publish(Message(topic, bytes(size), 1, True), self.now)
        self.member.flush(self.now)

    def send(self, data: bytes, topic: str | None, unicast: bool = False) -> None:
        """As it is."""
        source = None if topic else data[:1]
        self.member.receive_datagram(data, self.now, topic, source, unicast=unicast)
        self._drain()

    def say(self, stranger: bytes, data: bytes, topic: str | None, unicast: bool = False) -> None:
        """By a stranger, sealed if that is how they talk here. The sender in the header is overwritten."""
        data = data[:8] + stranger + data[16:]
        if self._keys is not None and len(data) >= HEADER_BYTES:
            data = self._sealer(stranger).seal(data[:HEADER_BYTES], data[HEADER_BYTES:])
        self.send(data, topic, unicast)

    def _sealer(self, stranger: bytes) -> Sealer:
        assert self._keys is not None
        if stranger not in self._sealers:
            self._sealers[stranger] = self._keys.sealer(stranger)
        return self._sealers[stranger]

    def advance(self, duration_s: float) -> None:
        self.now += duration_s
        for _ in range(10_000):
            if self.member.deadline > self.now:
                break
            self.member.handle_timer(self.now)
            self._drain()
        else:
            raise AssertionError("timers without end")

    def _drain(self) -> None:
        member = self.member
        member.take_memberships()
        member.take_publishing()
        for message in member.take_messages() + member.take_held():
            assert validate_name(message.topic)[0] != "$"
            assert len(message.payload) <= LIMITS.payload_bytes
            assert message.id is not None
        challenges = []
        for _, data in member.take_to_groups() + [("", data) for _, data in member.take_to_peers()]:
            header = frame.parse_header(data)
            assert header.sender == member.sender
            if header.kind == FrameKind.CHALLENGE and self._keys is not None:
                _, body = self._keys.open(member.sender, data)
                challenges.append(frame.parse_challenge(body))
        for challenge in challenges:
            if challenge.member in STRANGERS:
                proof = frame.pack_challenge(Challenge(member.sender, challenge.nonce))
                self.say(
                    challenge.member, frame.pack_header(FrameKind.PROOF, 0, 0, challenge.member) + proof, None
                )

    def finish(self) -> None:
        for _ in range(3):
            self.check()
            self.advance(40.0)
        self.check()

    def check(self) -> None:
        held = self.member.subscriber
        streams = [stream for sender in held.senders.values() for stream in sender.streams.values()]
        assert held.waiting_bytes == sum(stream.bytes + len(stream.pieces) for stream in streams)
        assert 0 <= held.waiting_bytes <= 2 * LIMITS.waiting_bytes
        assert held.stream_count == len(streams) <= limits.MAX_STREAMS
        for stream in streams:
            assert all(sequence >= stream.expected for sequence in stream.waiting)
            assert stream.bytes >= sum(len(arrived.body) for arrived in stream.waiting.values())
            assert stream.expected <= stream.highest + 1
        assert len(held.senders) <= limits.MAX_SENDERS
        assert len(held.listening) <= LIMITS.groups + len(held.filters)
        assert len(self.member.proofs.unproven) <= limits.MAX_UNPROVEN
        assert self.member.values.bytes <= LIMITS.retained_bytes
        assert len(self.member.peers.known) <= limits.MAX_PEERS
        assert len(self.member.peers.copies) <= limits.MAX_COPIES
