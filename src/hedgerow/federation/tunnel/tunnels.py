"""All tunnels over one connection to a broker, at a dialler or at the federator of that broker.

The dialler sends OPEN until the federator answers OPENED, and is open then. The federator is open with the
first DATA or ACK of that session: only then is it certain that the OPEN is not an old one that somebody
recorded, and only then does the tunnel replace the one that this dialler had. A dialler has one tunnel.

The shell publishes `take_frames` at QoS 0, to `FEDERATOR_TOPIC` or to the dialler's level under `NODE_TOPIC`,
gives every payload that comes to `receive`, and does what `take_events` tells. When its connection to the
broker is lost, it calls `close_all`. A dialler gives the broker `encode_will` as the will of its connection,
so that the federator knows of a lost one at once; with a key, nobody else can write it.

Without a key anyone with rights on these topics can open tunnels, write into them and close them; with one,
what strangers write is ignored and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hedgerow.federation.tunnel.frames import (
    MAX_FRAME_BYTES,
    NONCE_BYTES,
    TunnelFrame,
    TunnelFrameError,
    TunnelFrameKind,
    agree,
    answer_seal,
    check_node_id,
    decode,
    encode,
    opening_seal,
)
from hedgerow.federation.tunnel.tunnel import ACK_S, Tunnel
from hedgerow.rates import Allowance

OPEN_S = 3.0
OPEN_AGAIN_S = 0.5  # The federator may subscribe a moment later.

MIN_FRAME_BYTES = 1024  # of a broker's maximum packet size: with less, most of it would be heads
MAX_TUNNELS = 256
MAX_HALF_OPEN = 256  # OPENs can be invented, or recorded and sent again; the oldest makes room.

# Whoever invents frames makes us answer. A dialler that gets no answer notices by the MQTT inside.
ANSWERS_PER_S = 20.0
ANSWERS_BURST_S = 1.0

NO_PROOF = "it has another key, or only one of us has one"
KEY_DIFFERS = "the federator at this broker has another key, or only one of us has one"
NO_FEDERATOR = "no federator answers at this broker: start `hedgerow federate` beside it"


@dataclass(frozen=True, slots=True)
class Opened:
    tunnel: Tunnel


@dataclass(frozen=True, slots=True)
class TunnelReceived:
    tunnel: Tunnel
    data: bytes


@dataclass(frozen=True, slots=True)
class Drained:
    """It was congested, and may be written to again."""

    tunnel: Tunnel


@dataclass(frozen=True, slots=True)
class Closed:
    """By anything but its own `close`. It was not open before if no `Opened` told so."""

    tunnel: Tunnel
    reason: str


@dataclass(frozen=True, slots=True)
class DiallerRefused:
    """A dialler that this federator does not let in, by the name that it gives itself."""

    node_id: str
    reason: str


TunnelEvent = Opened | TunnelReceived | Drained | Closed | DiallerRefused


@dataclass(slots=True)
class _Handshake:
    tunnel: Tunnel
    opening: TunnelFrame
    frame: bytes
    """What is sent again: a dialler's OPEN, a federator's OPENED."""
    give_up_at: float
    again_at: float = float("inf")
    is_doubted: bool = False
    """Something answered that has not our key."""


class Tunnels:
    def __init__(
        self,
        node_id: str,
        *,
        is_federator: bool,
        random_bytes: Callable[[int], bytes],
        key: bytes | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_tunnels: int = MAX_TUNNELS,
    ) -> None:
        """`random_bytes` must be unpredictable. `key`: 16 to 64 bytes that all federators share.
        `max_frame_bytes`: the largest payload that the broker takes."""
        if key is not None and not 16 <= len(key) <= 64:
            raise ValueError(f"a key has 16 to 64 bytes, not {len(key)}")
        if max_frame_bytes < MIN_FRAME_BYTES:
            raise ValueError(f"a broker that takes {max_frame_bytes} bytes cannot carry a tunnel")
        self.node_id = check_node_id(node_id)
        self.is_federator = is_federator
        self.max_frame_bytes = max_frame_bytes
        self.max_tunnels = max_tunnels
        self.ignored: Counter[str] = Counter()
        """Frames by reason."""
        self._key = key
        self._random_bytes = random_bytes
        self._opening_seal = opening_seal(key)
        self._tunnels: dict[int, Tunnel] = {}  # by session number; at a federator half open ones too
        self._of_dialler: dict[str, _Handshake] = {}  # at a federator: the open tunnel of each
        self._handshakes: dict[tuple[str, int], _Handshake] = {}  # by dialler and tunnel id, oldest first
        self._dirty: dict[Tunnel, None] = {}
        self._acknowledge_at: dict[Tunnel, float] = {}  # soonest first
        self._frames: list[tuple[str | None, bytes]] = []
        self._events: list[TunnelEvent] = []
        self._answers = Allowance(ANSWERS_PER_S, ANSWERS_BURST_S)
        self._refusals = Allowance(ANSWERS_PER_S, ANSWERS_BURST_S)

    @property
    def half_open(self) -> int:
        """Tunnels that are being opened."""
        return len(self._handshakes)

    @property
    def session_count(self) -> int:
        """At a federator half open tunnels have a session, too."""
        return len(self._tunnels)

    # What the shell calls

    def open(self, tunnel_id: int, now: float) -> Tunnel:
        """A tunnel to the federator of this broker. `tunnel_id`: 64 bits by chance."""
        if self.is_federator:
            raise ValueError("a federator does not dial at its own broker")
        if (self.node_id, tunnel_id) in self._handshakes:
            raise ValueError(f"tunnel {tunnel_id} is being opened already")
        tunnel = self._make(tunnel_id)
        nonce = self._random_bytes(NONCE_BYTES)
        opening = TunnelFrame(TunnelFrameKind.OPEN, False, tunnel_id, self.node_id, data=nonce)
        frame = encode(opening, self._opening_seal)
        handshake = _Handshake(tunnel, opening, frame, now + OPEN_S, now + OPEN_AGAIN_S)
        self._handshakes[self.node_id, tunnel_id] = handshake
        self._frames.append((None, frame))
        return tunnel

    def encode_will(self, tunnel_id: int) -> bytes:
        """What the broker is to publish to `FEDERATOR_TOPIC` when it loses the connection of this dialler."""
        return self._closing(tunnel_id, "its connection to the broker was lost")

    def receive(self, payload: bytes, now: float) -> None:
        try:
            frame = decode(payload)
        except TunnelFrameError as problem:
            self.ignored[str(problem)] += 1
            return
        # A dialler that took an OPEN would have a half open tunnel that nothing ends, and a timer always due.
        is_misplaced = frame.kind is (TunnelFrameKind.OPENED if self.is_federator else TunnelFrameKind.OPEN)
        if frame.from_federator is self.is_federator or is_misplaced:
            self.ignored["direction"] += 1
            return
        _HANDLERS[frame.kind](self, frame, payload, now)

    def take_events(self) -> list[TunnelEvent]:
        events, self._events = self._events, []
        return events

    def take_frames(self) -> list[tuple[str | None, bytes]]:
        """(node id of the dialler, or None for the federator; payload), to be sent in this order."""
        frames, self._frames = self._frames, []
        dirty, self._dirty = self._dirty, {}
        for tunnel in dirty:
            destination = tunnel.peer if self.is_federator else None
            frames += [(destination, frame) for frame in tunnel.take_frames(self.max_frame_bytes)]
            if not tunnel.owed_bytes:
                self._acknowledge_at.pop(tunnel, None)
            if tunnel.closed_because is not None:
                self._forget(tunnel)
        return frames

    @property
    def deadline(self) -> float:
        """When `handle_timer` is to be called; infinity for never."""
        of_handshakes = (min(it.give_up_at, it.again_at) for it in self._handshakes.values())
        return min(next(iter(self._acknowledge_at.values()), float("inf")), *of_handshakes, float("inf"))

    def handle_timer(self, now: float) -> None:
        for tunnel in [tunnel for tunnel, at in self._acknowledge_at.items() if at <= now]:
            del self._acknowledge_at[tunnel]
            tunnel.acknowledge()
        for handshake in list(self._handshakes.values()):
            if handshake.give_up_at <= now:
                self._give_up(handshake)
            elif handshake.again_at <= now:
                handshake.again_at = now + OPEN_AGAIN_S
                self._frames.append((None, handshake.frame))

    def close_all(self, reason: str) -> None:
        """The connection to the broker is lost."""
        tunnels = [tunnel for tunnel in self._all() if tunnel.closed_because is None]
        for table in (self._tunnels, self._of_dialler, self._handshakes, self._dirty, self._acknowledge_at):
            table.clear()
        self._frames.clear()
        for tunnel in tunnels:
            self._end(tunnel, reason)

    def peer_gone(self, node_id: str) -> None:
        """The broker says that this node is no longer there."""
        for tunnel in [tunnel for tunnel in self._all() if tunnel.peer == node_id]:
            self._end(tunnel, "it is no longer at the broker")

    # What each kind of frame means

    def _handle_open(self, frame: TunnelFrame, payload: bytes, now: float) -> None:
        if not self._opening_seal.accepts(payload):
            self.ignored["proof"] += 1
            self._refuse(frame, NO_PROOF, now)
        elif frame.sender == self.node_id:
            self._refuse(frame, f"it has the node id of this federator, {self.node_id}", now)
        elif known := self._known(frame):
            if known.opening == frame:
                self._frames.append((frame.sender, known.frame))
            else:
                self.ignored["duplicate"] += 1
        elif frame.sender not in self._of_dialler and len(self._of_dialler) >= self.max_tunnels:
            self._refuse(frame, f"this federator has {self.max_tunnels} tunnels already", now)
        else:
            self._offer(frame, now)

    def _handle_opened(self, frame: TunnelFrame, payload: bytes, now: float) -> None:
        handshake = self._handshakes.get((self.node_id, frame.number))
        if handshake is None or handshake.tunnel.closed_because is not None:
            self.ignored["unknown tunnel"] += 1
            return
        if not answer_seal(self._key, handshake.opening).accepts(payload):
            self.ignored["proof"] += 1
            handshake.is_doubted = True
            return
        if frame.sender == self.node_id:
            self.ignored["sender"] += 1
            return
        del self._handshakes[self.node_id, frame.number]
        tunnel = handshake.tunnel
        tunnel.begin(frame.sender, agree(self._key, handshake.opening, frame))
        self._tunnels[tunnel.number] = tunnel
        tunnel.open()
        tunnel.acknowledge()  # The federator is open with the first frame of the session.
        self._events.append(Opened(tunnel))

    def _handle_stream(self, frame: TunnelFrame, payload: bytes, now: float) -> None:
        tunnel = self._tunnels.get(frame.number)
        if tunnel is None:
            self.ignored["unknown tunnel"] += 1
            if self._answers.take(now):
                self._answer(frame, "there is no such tunnel")
        elif frame.sender != tunnel.peer:
            self.ignored["sender"] += 1
        elif not tunnel.accepts(payload):
            self.ignored["proof"] += 1
        elif tunnel.closed_because is None and (tunnel.is_open or self._confirm(tunnel, frame, now)):
            self._receive(tunnel, frame, now)

    def _handle_close(self, frame: TunnelFrame, payload: bytes, now: float) -> None:
        known = self._known(frame)
        tunnel = known.tunnel if known else self._tunnels.get(frame.number)
        if not self._opening_seal.accepts(payload):
            self.ignored["proof"] += 1
            if known:
                known.is_doubted = True
        elif tunnel is None or tunnel.closed_because is not None:
            self.ignored["unknown tunnel"] += 1
        elif tunnel.peer not in ("", frame.sender):
            self.ignored["sender"] += 1
        else:
            self._end(tunnel, frame.reason)

    # How they do it

    def _make(self, tunnel_id: int) -> Tunnel:
        return Tunnel(
            tunnel_id,
            self.node_id,
            from_federator=self.is_federator,
            opening_seal=self._opening_seal,
            on_output=self._note_output,
            ignored=self.ignored,
        )

    def _note_output(self, tunnel: Tunnel) -> None:
        self._dirty[tunnel] = None

    def _all(self) -> list[Tunnel]:
        opening = [handshake.tunnel for handshake in self._handshakes.values()]
        return list(dict.fromkeys([*self._tunnels.values(), *opening]))

    def _known(self, frame: TunnelFrame) -> _Handshake | None:
        """That of the tunnel whose id as the dialler gave it is the number of this frame."""
        if not self.is_federator:
            return self._handshakes.get((self.node_id, frame.number))
        of_dialler = self._of_dialler.get(frame.sender)
        if of_dialler is not None and of_dialler.tunnel.id == frame.number:
            return of_dialler
        return self._handshakes.get((frame.sender, frame.number))

    def _offer(self, opening: TunnelFrame, now: float) -> None:
        if len(self._handshakes) >= MAX_HALF_OPEN:
            self.ignored["crowded"] += 1
            self._forget(next(iter(self._handshakes.values())).tunnel)
        nonce = self._random_bytes(NONCE_BYTES)
        answer = TunnelFrame(TunnelFrameKind.OPENED, True, opening.number, self.node_id, data=nonce)
        tunnel = self._make(opening.number)
        tunnel.begin(opening.sender, agree(self._key, opening, answer))
        self._tunnels[tunnel.number] = tunnel
        frame = encode(answer, answer_seal(self._key, opening))
        self._handshakes[opening.sender, opening.number] = _Handshake(tunnel, opening, frame, now + OPEN_S)
        self._frames.append((opening.sender, frame))

    def _confirm(self, tunnel: Tunnel, frame: TunnelFrame, now: float) -> bool:
        """The dialler has our nonce: it is there now. Is there room for it?"""
        before = self._of_dialler.get(tunnel.peer)
        if before is None and len(self._of_dialler) >= self.max_tunnels:
            self._forget(tunnel)
            self._refuse(frame, f"this federator has {self.max_tunnels} tunnels already", now)
            return False
        if before is not None:
            was_closed = before.tunnel.closed_because is not None
            reason = "its dialler has opened another one"
            before.tunnel.break_off(reason)
            if not was_closed:
                self._events.append(Closed(before.tunnel, reason))
        self._of_dialler[tunnel.peer] = self._handshakes.pop((tunnel.peer, tunnel.id))
        tunnel.open()
        self._events.append(Opened(tunnel))
        return True

    def _receive(self, tunnel: Tunnel, frame: TunnelFrame, now: float) -> None:
        was_congested = tunnel.is_congested
        data = tunnel.receive(frame)
        if data:
            self._events.append(TunnelReceived(tunnel, data))
        if tunnel.closed_because is not None:
            self._events.append(Closed(tunnel, tunnel.closed_because))
            return
        if was_congested and not tunnel.is_congested:
            self._events.append(Drained(tunnel))
        if tunnel.owes_much:
            tunnel.acknowledge()
        elif tunnel.owed_bytes:
            self._acknowledge_at.setdefault(tunnel, now + ACK_S)

    def _refuse(self, frame: TunnelFrame, reason: str, now: float) -> None:
        if self._refusals.take(now):
            self._events.append(DiallerRefused(frame.sender, reason))
            self._answer(frame, reason)

    def _answer(self, frame: TunnelFrame, reason: str) -> None:
        destination = frame.sender if self.is_federator else None
        self._frames.append((destination, self._closing(frame.number, reason)))

    def _closing(self, number: int, reason: str) -> bytes:
        closing = TunnelFrame(TunnelFrameKind.CLOSE, self.is_federator, number, self.node_id, reason=reason)
        return encode(closing, self._opening_seal)

    def _give_up(self, handshake: _Handshake) -> None:
        tunnel = handshake.tunnel
        if self.is_federator:
            self._forget(tunnel)
        elif tunnel.closed_because is None:
            reason = KEY_DIFFERS if handshake.is_doubted else NO_FEDERATOR
            tunnel.close(reason)
            self._events.append(Closed(tunnel, reason))

    def _end(self, tunnel: Tunnel, reason: str) -> None:
        """Without a word to the other end. Of a half open one at a federator nobody here has heard either."""
        is_told = tunnel.closed_because is None and (tunnel.is_open or not self.is_federator)
        tunnel.end(reason)
        self._forget(tunnel)
        if is_told:
            self._events.append(Closed(tunnel, reason))

    def _forget(self, tunnel: Tunnel) -> None:
        dialler = tunnel.peer if self.is_federator else self.node_id
        self._tunnels.pop(tunnel.number, None)
        self._handshakes.pop((dialler, tunnel.id), None)
        self._acknowledge_at.pop(tunnel, None)
        self._dirty.pop(tunnel, None)
        of_dialler = self._of_dialler.get(dialler)
        if of_dialler is not None and of_dialler.tunnel is tunnel:
            del self._of_dialler[dialler]


_HANDLERS: dict[TunnelFrameKind, Callable[[Tunnels, TunnelFrame, bytes, float], None]] = {
    TunnelFrameKind.OPEN: Tunnels._handle_open,
    TunnelFrameKind.OPENED: Tunnels._handle_opened,
    TunnelFrameKind.DATA: Tunnels._handle_stream,
    TunnelFrameKind.ACK: Tunnels._handle_stream,
    TunnelFrameKind.CLOSE: Tunnels._handle_close,
}
