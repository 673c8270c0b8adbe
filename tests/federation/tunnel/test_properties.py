"""Whatever the broker loses, forgets or is made to say: a stream is what was written, up to its end.

A tunnel is known by its id at both ends, so that what came out can be held against what was written to it.
"""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.federation.tunnel import frames
from hedgerow.federation.tunnel.frames import TunnelFrameKind
from hedgerow.federation.tunnel.tunnel import ACK_S, Tunnel
from hedgerow.federation.tunnel.tunnels import Opened, Tunnels
from tests.federation.tunnel.carrier import DIALLER, FEDERATOR, KEY, Carrier

ENDS = (DIALLER, FEDERATOR)
OTHER = {DIALLER: FEDERATOR, FEDERATOR: DIALLER}

ends = st.sampled_from(ENDS)
sizes = st.one_of(st.integers(1, 200), st.sampled_from([5_000, 40_000, 300_000]))
usual = st.one_of(
    st.tuples(st.just("write"), ends, sizes),
    st.tuples(st.just("carry"), ends, st.integers(1, 20)),
    st.tuples(st.just("tick"), ends, st.sampled_from([1, 50, 600])),
    st.tuples(st.just("pause"), ends, st.just(0)),
    st.tuples(st.just("resume"), ends, st.just(0)),
    st.tuples(st.just("write"), ends, st.integers(1, 200)),
)
misfortune = st.tuples(st.sampled_from(["lose", "lose", "restart", "forget", "close"]), ends, st.just(0))


class Run:
    """Operations on one carrier with one dialler, which opens a new tunnel whenever it has none."""

    def __init__(self, key: bytes | None) -> None:
        self.carrier = Carrier(key, max_frame_bytes=4_000)
        self.key = key
        self.written: dict[tuple[str, int], bytearray] = defaultdict(bytearray)
        """(receiver, tunnel id) → what it should get."""
        self.ids = 0
        self.near: Tunnel | None = None
        self.counter = 0

    def end(self, name: str) -> Tunnel | None:
        if name == DIALLER:
            return self.near
        opened = [event.tunnel for event in self.carrier.events[FEDERATOR] if isinstance(event, Opened)]
        return opened[-1] if opened else None

    def do(self, operation: str, name: str, value: int) -> None:
        if self.near is None or self.near.closed_because is not None:
            self.ids += 1
            self.near = self.carrier.dialler.open(self.ids, self.carrier.now)
        getattr(self, f"_{operation}")(name, value)
        self.check()

    def _write(self, name: str, size: int) -> None:
        tunnel = self.end(name)
        if tunnel is not None and tunnel.closed_because is None:
            self.counter += 1
            data = self.counter.to_bytes(4, "big") * (size // 4 + 1)
            tunnel.write(data)
            self.written[OTHER[name], tunnel.id] += data

    def _carry(self, name: str, count: int) -> None:
        for _ in range(count):
            self.carrier.carry(name)

    def _tick(self, name: str, milliseconds: int) -> None:
        self.carrier.now += milliseconds / 1000
        self.carrier.nodes[name].handle_timer(self.carrier.now)

    def _pause(self, name: str, _: int) -> None:
        if tunnel := self.end(name):
            tunnel.pause_reading()

    def _resume(self, name: str, _: int) -> None:
        if tunnel := self.end(name):
            self.carrier.arrived[name, tunnel.id] += tunnel.resume_reading()

    def _lose(self, name: str, _: int) -> None:
        self.carrier.lose(name)

    def _restart(self, name: str, _: int) -> None:
        self.carrier.restart()

    def _forget(self, name: str, _: int) -> None:
        """The process at one end is another one now."""
        self.carrier.collect()
        self.carrier.add(name, self.key)
        if name == DIALLER:
            self.near = None

    def _close(self, name: str, _: int) -> None:
        if tunnel := self.end(name):
            tunnel.close("enough")

    def check(self) -> None:
        self.carrier.collect()
        for receiver, arrived in self.carrier.arrived.items():
            assert self.written[receiver].startswith(arrived)

    def finish(self) -> None:
        """Nothing is lost any more, both ends read, and each has something more to say."""
        for _ in range(2):
            for name in ENDS:
                self._resume(name, 0)
            self.carrier.advance(1)
        for name in ENDS:
            self._write(name, 1)
        for _ in range(2):
            self.carrier.advance(4)
        self.check()


@settings(max_examples=60)
@given(st.sampled_from([None, KEY]), st.lists(usual, max_size=60))
def test_without_loss_all_arrives(key: bytes | None, operations: list[tuple[str, str, int]]) -> None:
    run = Run(key)
    run.near = run.carrier.dialler.open(1, run.carrier.now)
    run.carrier.settle()
    for operation in operations:
        run.do(*operation)
    run.finish()
    near, far = run.end(DIALLER), run.end(FEDERATOR)
    assert near is not None
    assert far is not None
    assert near.closed_because is far.closed_because is None
    assert near.unacknowledged_bytes == far.unacknowledged_bytes == 0
    for name in ENDS:
        assert run.carrier.arrived[name, 1] == run.written[name, 1]


@settings(max_examples=150)
@given(st.sampled_from([None, KEY]), st.lists(st.one_of(usual, usual, misfortune), max_size=80))
def test_with_loss_a_stream_is_whole_or_ends(
    key: bytes | None, operations: list[tuple[str, str, int]]
) -> None:
    run = Run(key)
    for operation in operations:
        run.do(*operation)
    run.finish()
    near, far = run.end(DIALLER), run.end(FEDERATOR)
    for mine, other, name in ((near, far, FEDERATOR), (far, near, DIALLER)):
        if mine is None or mine.closed_because is not None or not mine.is_open:
            continue
        if mine.unacknowledged_bytes:
            # An acknowledgement was lost and the window is full, or the other end knows nothing of it: the
            # probe of the MQTT inside gets no answer.
            continue
        assert other is not None
        assert other.id == mine.id
        assert run.carrier.arrived[name, mine.id] == run.written[name, mine.id]


@settings(max_examples=60)
@given(ends, st.lists(st.integers(1, 3_000), min_size=2, max_size=30), st.data())
def test_a_lost_frame_ends_both(name: str, writes: list[int], data: st.DataObject) -> None:
    run = Run(None)
    near, far = run.carrier.dial(1)
    run.near = near
    lost = data.draw(st.integers(0, len(writes) - 2))
    for number, size in enumerate(writes):
        run.do("write", name, size)
        (run.carrier.lose if number == lost else run.carrier.carry)(OTHER[name])
    run.carrier.advance(1)
    assert near.closed_because is not None
    assert near.closed_because == far.closed_because
    arrived = run.carrier.arrived[OTHER[name], 1]
    assert len(arrived) == sum(size // 4 * 4 + 4 for size in writes[:lost])


intruders = st.tuples(st.just("intrude"), ends, st.integers(0, 2**30))


@settings(max_examples=100)
@given(st.lists(st.one_of(usual, intruders), max_size=60))
def test_with_a_key_strangers_change_nothing(operations: list[tuple[str, str, int]]) -> None:
    """They send again what anyone ever sent, to either end, or change a byte of it."""
    run = Run(KEY)
    for number in range(1, 4):  # tunnels of earlier days, of which all was recorded
        if number > 1:
            run.carrier.restart()
        run.near, _ = run.carrier.dial(number)
        run.ids = number
        run.do("write", DIALLER, 10)
        run.do("write", FEDERATOR, 5_000)
        run.carrier.advance(ACK_S)
    closed_before = run.carrier.closed(DIALLER) + run.carrier.closed(FEDERATOR)
    for operation, name, value in operations:
        if operation != "intrude":
            run.do(operation, name, value)
            continue
        carried = run.carrier.carried
        payload = bytearray(carried[value % len(carried)][1])
        if value & 1:
            payload[value // 2 % len(payload)] ^= 1 << value % 8
        run.carrier.queues[name].append(bytes(payload))
    run.finish()
    assert run.carrier.closed(DIALLER) + run.carrier.closed(FEDERATOR) == closed_before
    assert run.near is not None
    assert run.near.id == 3
    for name in ENDS:
        assert run.carrier.arrived[name, 3] == run.written[name, 3]


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """Noise, or a frame with a head that is right."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=80))
    kind = draw(st.sampled_from(TunnelFrameKind))
    number = draw(st.sampled_from([1, 2, 2**64 - 1]))
    flags = draw(st.sampled_from([0, 0x40, 0x80, 0xC0]))
    name = draw(st.sampled_from([DIALLER, FEDERATOR, "x"])).encode()
    return (
        frames.HEAD.pack(frames.VERSION, kind | flags, number, len(name))
        + name
        + draw(st.binary(max_size=60))
    )


@given(st.sampled_from([None, KEY]), st.booleans(), st.lists(hostile(), max_size=30), st.booleans())
def test_nothing_that_arrives_raises(
    key: bytes | None, is_federator: bool, payloads: list[bytes], uses_session: bool
) -> None:
    carrier = Carrier(key)
    near, _ = carrier.dial(1)
    node: Tunnels = carrier.federator if is_federator else carrier.dialler
    for payload in payloads:
        if uses_session and len(payload) > frames.HEAD.size:
            payload = payload[:2] + near.number.to_bytes(8, "big") + payload[10:]
        node.receive(payload, carrier.now)
        node.handle_timer(carrier.now)
        node.take_frames()
        node.take_events()
