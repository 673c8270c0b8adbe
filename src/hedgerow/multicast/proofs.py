"""Proof of life: with keys, nothing is believed of a sender before it has answered a challenge.

Frames of an earlier life of the network, recorded and played back, have a good seal but nobody who answers.
Until the proof comes, what a sender says waits here. The proof also says which of its frames are too old to
be anything but recordings.
"""

from __future__ import annotations

from typing import NamedTuple

from hedgerow.multicast import frame
from hedgerow.multicast.frame import NONCE_BYTES, Challenge, FrameKind, Header
from hedgerow.multicast.keys import ReplayWindow
from hedgerow.multicast.limits import ASK_AGAIN_S, MAX_UNPROVEN, MAX_UNPROVEN_BYTES, PROOFS_PER_S
from hedgerow.multicast.peers import PeerAddress
from hedgerow.multicast.random import Random
from hedgerow.multicast.stats import MulticastStats
from hedgerow.multicast.timers import Timers
from hedgerow.multicast.transmitter import Transmitter
from hedgerow.rates import Allowance


class Datagram(NamedTuple):
    """What `Member.receive_datagram` was told."""

    data: bytes
    topic: str | None
    source: PeerAddress | None
    unicast: bool


class Unproven:
    """A sender whose frames open, but which may be a recording of an earlier life: it is asked for a proof,
    and until that comes its frames wait."""

    __slots__ = ("bytes", "frames", "nonce", "tries", "window")

    def __init__(self, nonce: bytes) -> None:
        self.nonce = nonce
        self.frames: list[Datagram] = []
        self.bytes = 0
        self.tries = 0
        self.window = ReplayWindow()


class Proofs:
    def __init__(
        self, transmitter: Transmitter, timers: Timers, random: Random, stats: MulticastStats
    ) -> None:
        self.unproven: dict[bytes, Unproven] = {}
        self._transmitter = transmitter
        self._timers = timers
        self._random = random
        self._stats = stats
        self._answers = Allowance(PROOFS_PER_S, 0.5)

    def hold(
        self, header: Header, body: bytes, counter: int, datagram: Datagram, now: float
    ) -> list[Datagram] | None:
        """Keep a frame of a sender that is not believed yet. If it is the proof, what waited for it."""
        unproven = self.unproven.get(header.sender)
        if header.kind == FrameKind.PROOF:
            expected = (self._transmitter.sender, unproven.nonce) if unproven is not None else None
            if unproven is None or frame.parse_challenge(body) != expected:
                return None
            del self.unproven[header.sender]
            return unproven.frames
        if unproven is None:
            if len(self.unproven) >= MAX_UNPROVEN:
                # The one that has had the most time to answer. Recordings must not keep newcomers out.
                oldest = next(iter(self.unproven))
                self._stats.unproven += len(self.unproven.pop(oldest).frames)
            unproven = self.unproven[header.sender] = Unproven(self._random.randbytes(NONCE_BYTES))
            self._challenge(header.sender, unproven, now)
        if not unproven.window.accepts(counter):
            self._stats.replayed += 1
        elif header.kind == FrameKind.CHALLENGE:
            # Two that meet must not each wait for the other's proof first.
            self.answer(frame.parse_challenge(body), header.sender, now)
        elif unproven.bytes + len(datagram.data) > MAX_UNPROVEN_BYTES:
            self._stats.unproven += 1
        else:
            unproven.frames.append(datagram)
            unproven.bytes += len(datagram.data)
        return None

    def _challenge(self, sender_id: bytes, unproven: Unproven, now: float) -> None:
        if self.unproven.get(sender_id) is not unproven:
            return
        if unproven.tries > len(ASK_AGAIN_S):
            del self.unproven[sender_id]
            self._stats.unproven += len(unproven.frames)
            return
        challenge = Challenge(sender_id, unproven.nonce)
        self._transmitter.send_to_all(FrameKind.CHALLENGE, frame.pack_challenge(challenge))
        wait_s = (*ASK_AGAIN_S, 1.0)[unproven.tries]
        unproven.tries += 1
        self._timers.at(now + wait_s, lambda at: self._challenge(sender_id, unproven, at))

    def answer(self, challenge: Challenge, asker: bytes, now: float) -> None:
        if challenge.member == self._transmitter.sender and self._answers.take(now):
            proof = Challenge(asker, challenge.nonce)
            self._transmitter.send_to_all(
                FrameKind.PROOF, frame.pack_challenge(proof), message_sequence=self._transmitter.stale_counter
            )
