"""The driver of `hedgerow bench devices`: hundreds of connections in one process, one small packet per write.

It has to cost little beside the broker, so a message is a few steps of the interpreter: every packet was
built beforehand, a device sends the same one again and again (its one packet identifier is free when it was
acknowledged), acknowledgements of devices are compared whole, and QoS 0 is counted by its bytes. Only what a
subscriber gets at QoS 1 and 2 is walked packet by packet, for its packet identifiers. `Measured.busy` says
how much of one core all that took.

The loop is closed. At QoS 1 and 2 each device has one publication in flight, and sends the next when that is
acknowledged. At QoS 0 at most `window` messages are under way, and the devices take turns. A run ends when
the last message has arrived; at QoS 0, what has not come after `QUIET_S` of silence is lost, and counted.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.device_wire import INDEX_DIGITS, MARKER, DevicePacket

QUIET_S = 1.0
STALL_S = 10.0
_POLL_S = 0.05
_MAX_EVENTS = 4_096
_RECEIVE_BYTES = 1 << 18
_BURST = 64  # QoS 0 packets between two looks at what has arrived

PACKET_ID = b"\0\1"
_PUBACK, _PUBREC, _PUBREL, _PUBCOMP = b"\x40\x02", b"\x50\x02", b"\x62\x02", b"\x70\x02"
_NATS_PING = b"PING\r\n"
Socket = socket.socket | ssl.SSLSocket


class Crowd:
    """Connections to one broker, what is done when one of them has something, and the counts of all."""

    def __init__(self) -> None:
        self.poll = select.epoll()
        self.sockets: dict[int, Socket] = {}
        self.handlers: dict[int, Callable[[], None]] = {}
        self.sent = 0
        self.awaited = 0  # acknowledgements
        self.acknowledged = 0
        self.received = 0  # messages, by those who walk through packets
        self.received_bytes = 0  # by those who count bytes
        self.is_open = False  # for publications that follow an acknowledgement
        # Where messages are numbered: is given a payload, as the place in what was received where it begins.
        self.note: Callable[[bytes, int], None] | None = None

    def add(self, connection: Socket, handler: Callable[[], None]) -> None:
        connection.setblocking(False)
        descriptor = connection.fileno()
        self.sockets[descriptor] = connection
        self.handlers[descriptor] = handler
        self.poll.register(descriptor, select.EPOLLIN)

    def turn(self, timeout_s: float = _POLL_S) -> int:
        """Handle what has come; how many connections had anything."""
        handlers = self.handlers
        events = self.poll.poll(timeout_s, _MAX_EVENTS)
        for descriptor, _ in events:
            handlers[descriptor]()
        return len(events)

    def close(self) -> None:
        for connection in self.sockets.values():
            connection.close()
        self.sockets.clear()
        self.handlers.clear()
        self.poll.close()


class Device:
    """Publishes one packet again and again, at QoS 1 and 2 with the identifier `PACKET_ID`.

    `frame` is what precedes each answer, where they come in frames. `follower` publishes whenever this one
    has an acknowledgement, and gets none itself.
    """

    qos = 0

    def __init__(
        self,
        crowd: Crowd,
        connection: Socket,
        packet: DevicePacket,
        frame: bytes = b"",
        follower: Device | None = None,
    ) -> None:
        self._crowd = crowd
        self._receive = connection.recv
        self._follower = follower
        self.send = connection.send
        self.packet = packet.data
        self.index_at = packet.index_at
        self.delivered_bytes = packet.delivered_bytes
        self.is_waiting = False  # for an acknowledgement
        self.prepare(frame)
        crowd.add(connection, self.handle)

    def prepare(self, frame: bytes) -> None:
        pass

    def publish(self) -> None:
        crowd = self._crowd
        crowd.sent += 1
        crowd.awaited += self.qos > 0
        self.is_waiting = self.qos > 0
        self.send(self.packet)

    def publish_number(self, number: int) -> None:
        at, packet = self.index_at, self.packet
        self._crowd.sent += 1
        self._crowd.awaited += self.qos > 0
        self.is_waiting = self.qos > 0
        self.send(packet[:at] + b"%0*d" % (INDEX_DIGITS, number) + packet[at + INDEX_DIGITS :])

    def handle(self) -> None:
        """It gets nothing at QoS 0."""
        _read(self._receive)

    def acknowledged(self) -> None:
        crowd = self._crowd
        crowd.acknowledged += 1
        if crowd.is_open:
            crowd.sent += 1
            crowd.awaited += 1
            self.send(self.packet)
            if self._follower is not None:
                self._follower.publish()
        else:
            self.is_waiting = False


class Qos1Device(Device):
    qos = 1

    def prepare(self, frame: bytes) -> None:
        self._answer = frame + _PUBACK + PACKET_ID

    def handle(self) -> None:
        data = _read(self._receive)
        if data == self._answer:
            self.acknowledged()
        elif data:
            raise BenchError(f"answered a PUBLISH with {data[:20]!r}")


class Qos2Device(Device):
    qos = 2

    def prepare(self, frame: bytes) -> None:
        self._received = frame + _PUBREC + PACKET_ID
        self._complete = frame + _PUBCOMP + PACKET_ID
        self._release = _PUBREL + PACKET_ID

    def handle(self) -> None:
        data = _read(self._receive)
        if data == self._received:
            self.send(self._release)
        elif data == self._complete:
            self.acknowledged()
        elif data:
            raise BenchError(f"answered a PUBLISH with {data[:20]!r}")


DEVICES: dict[int, type[Device]] = {0: Device, 1: Qos1Device, 2: Qos2Device}


class ByteCounter:
    """A subscriber at QoS 0: what it gets is known by its size. `pings`: its server says PING at times."""

    def __init__(self, crowd: Crowd, connection: socket.socket, pings: bool = False) -> None:
        self._crowd = crowd
        self._receive = connection.recv
        self._receive_into = connection.recv_into
        self._pings = pings
        self._held = b""
        crowd.add(connection, self.handle)

    def handle(self) -> None:
        if self._pings or self._crowd.note is not None:
            self._look()
            return
        try:
            size = self._receive_into(_shared_buffer)
        except BlockingIOError:
            return
        if not size:
            raise BenchError("closed a connection under load")
        self._crowd.received_bytes += size

    def _look(self) -> None:
        data = _read(self._receive, _RECEIVE_BYTES)
        size = len(data)
        if self._pings and _NATS_PING in data:
            size -= len(_NATS_PING) * data.count(_NATS_PING)
        crowd = self._crowd
        crowd.received_bytes += size
        if crowd.note is None:
            return
        data = self._held + data
        position = 0
        while (found := data.find(MARKER, position)) >= 0 and found + _NUMBERED <= len(data):
            crowd.note(data, found)
            position = found + _NUMBERED
        self._held = data[max(position, len(data) - _NUMBERED + 1) :]


_NUMBERED = len(MARKER) + INDEX_DIGITS
_shared_buffer = bytearray(_RECEIVE_BYTES)  # its content is of no interest


class Reader:
    """A subscriber that looks at each packet: it acknowledges, and counts what is complete.

    `properties` is how many bytes MQTT 5 puts before the payload.
    """

    def __init__(
        self,
        crowd: Crowd,
        connection: Socket,
        properties: int = 0,
    ) -> None:
        self._crowd = crowd
        self._receive = connection.recv
        self._socket = connection
        self._held = b""
        self._unsent = b""
        self._properties = properties
        self.messages = 0
        crowd.add(connection, self.handle)

    def handle(self) -> None:
        data = _read(self._receive, _RECEIVE_BYTES)
        if data:
            self.take(self._held + data if self._held else data)

    def take(self, data: bytes) -> None:
        position, end = 0, len(data)
        answers: list[bytes] = []
        count = 0
        note = self._crowd.note
        while end - position >= 2:
            length = data[position + 1]
            body = position + 2
            if length >= 0x80:
                if end - position < 3:
                    break
                length = length & 0x7F | data[body] << 7
                body += 1
            stop = body + length
            if stop > end:
                break
            kind = data[position] >> 4
            if kind == 3:
                at = body + 2 + (data[body] << 8 | data[body + 1])
                qos = data[position] >> 1 & 3
                if qos == 1:
                    answers += (_PUBACK, data[at : at + 2])
                    count += 1
                elif qos == 2:
                    answers += (_PUBREC, data[at : at + 2])
                else:
                    at -= 2
                    count += 1
                if note is not None:
                    note(data, at + 2 + self._properties)
            elif kind == 6:
                answers += (_PUBCOMP, data[body : body + 2])
                count += 1
            position = stop
        self._held = data[position:]
        self.messages += count
        self._crowd.received += count
        if answers:
            self._answer(b"".join(answers))

    def _answer(self, data: bytes) -> None:
        data = self._unsent + data
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        self._unsent = data[sent:]


def _read(receive: Callable[[int], bytes], size: int = 4_096) -> bytes:
    """Nothing, where it was woken for nothing; and where TLS has no whole record yet."""
    try:
        data = receive(size)
    except (BlockingIOError, ssl.SSLWantReadError):
        return b""
    if not data:
        raise BenchError("closed a connection under load")
    return data


@dataclass(frozen=True)
class Measured:
    deliveries: int
    lost: int
    seconds: float
    """Until the last message arrived."""
    busy: float
    """The loader's own processor time as a share of the time that passed."""
    latencies: list[int] = field(default_factory=list)
    """In nanoseconds, of a paced run."""


class Traffic:
    """Devices and subscribers of one broker. `copies`: how many subscribers get each message.

    `counts_bytes`: of QoS 0, deliveries are counted by their bytes, and `window` messages may be under way.
    """

    def __init__(
        self,
        crowd: Crowd,
        devices: Sequence[Device],
        copies: int = 1,
        *,
        counts_bytes: bool = False,
        window: int = 1_000,
        quiet_s: float = QUIET_S,
        stall_s: float = STALL_S,
    ) -> None:
        self.crowd = crowd
        self._devices = devices
        self._copies = copies
        self._counts_bytes = counts_bytes
        self._mean_bytes = max(1, sum(each.delivered_bytes for each in devices) // len(devices))
        self._window_bytes = window * copies * self._mean_bytes
        self._sends = [(each.send, each.packet, each.delivered_bytes * copies) for each in devices]
        self._quiet_s = quiet_s
        self._stall_s = stall_s
        self._next = 0
        self._due_bytes = 0  # at all who get it, of what was sent

    def close(self) -> None:
        self.crowd.close()

    def run(self, seconds: float) -> Measured:
        """As fast as it goes: at QoS 1 and 2 a publication in flight for each device, at QoS 0 a window."""
        crowd = self.crowd
        if self._counts_bytes:
            return self._run(seconds, self._fill_window)

        def begin() -> bool:
            if not crowd.is_open:
                crowd.is_open = True
                for device in self._devices:
                    if device.qos:
                        device.publish()
            return False

        return self._run(seconds, begin)

    def run_paced(self, seconds: float, rate: float) -> Measured:
        """So many messages a second, by the clock, whatever has become of those before."""
        crowd = self.crowd
        sent_at: list[int] = []
        latencies: list[int] = []
        clock = time.perf_counter_ns
        started = clock()

        def send() -> bool:
            """What is due, as far as a device has nothing in flight. There is no more to send at once."""
            due = min(int((clock() - started) * rate / 1e9) + 1 - len(sent_at), _BURST)
            for _ in range(due):
                number = len(sent_at)
                device = self._take_device()
                if device.is_waiting:
                    break
                sent_at.append(clock())
                self._due_bytes += device.delivered_bytes * self._copies
                device.publish_number(number)
            return False

        def note(data: bytes, at: int) -> None:
            number = int(data[at + len(MARKER) : at + _NUMBERED])
            latencies.append(clock() - sent_at[number])

        crowd.note = note
        try:
            measured = self._run(seconds, send, poll_s=0.5 / rate)
        finally:
            crowd.note = None
        return Measured(measured.deliveries, measured.lost, measured.seconds, measured.busy, latencies)

    def _take_device(self) -> Device:
        """The next whose last publication is acknowledged; or the next, if there is none."""
        devices, position = self._devices, self._next
        for _ in range(len(devices)):
            if not devices[position].is_waiting:
                break
            position = (position + 1) % len(devices)
        device = devices[position]
        self._next = (position + 1) % len(devices)
        return device

    def _fill_window(self) -> bool:
        """Send some; whether there is room for more. At QoS 0 no device waits for anything, and all that a
        message costs here is its send."""
        crowd, sends, position, due_bytes = self.crowd, self._sends, self._next, self._due_bytes
        most = crowd.received_bytes + self._window_bytes
        has_room = True
        for sent in range(_BURST):
            if due_bytes >= most:
                crowd.sent += sent
                has_room = False
                break
            send, packet, delivered_bytes = sends[position]
            position = (position + 1) % len(sends)
            send(packet)
            due_bytes += delivered_bytes
        else:
            crowd.sent += _BURST
        self._next, self._due_bytes = position, due_bytes
        return has_room

    def _run(self, seconds: float, send: Callable[[], bool], poll_s: float = _POLL_S) -> Measured:
        """`send` is called turn by turn, and says whether it has more to send at once."""
        crowd = self.crowd
        sent_before, received_before = crowd.sent, crowd.received
        processor = time.process_time()
        started = heard_at = now = time.perf_counter()
        stop_at = started + seconds
        has_more = False
        while True:
            if now < stop_at:
                has_more = send()
            else:
                has_more = crowd.is_open = False
                poll_s = _POLL_S
                if self._is_settled():
                    break
            has_heard = crowd.turn(0.0 if has_more else poll_s)
            now = time.perf_counter()
            if has_heard:
                heard_at = now
            elif now > stop_at and self._counts_bytes and now - heard_at > self._quiet_s:
                break
            elif now - heard_at > self._stall_s:
                raise BenchError(self._stalled())
        share = (time.process_time() - processor) / (now - started)
        deliveries = (crowd.sent - sent_before) * self._copies
        lost = 0
        if self._counts_bytes:
            lost = (self._due_bytes - crowd.received_bytes) // self._mean_bytes
            self._due_bytes = crowd.received_bytes  # What was given up may be in the next run's way no more.
        elif crowd.received - received_before != deliveries:
            raise BenchError(f"of {deliveries} deliveries {crowd.received - received_before} came")
        return Measured(deliveries - lost, lost, heard_at - started, share)

    def _is_settled(self) -> bool:
        crowd = self.crowd
        if self._counts_bytes:
            return self._due_bytes <= crowd.received_bytes
        is_acknowledged = crowd.acknowledged == crowd.awaited
        return is_acknowledged and crowd.received >= crowd.sent * self._copies

    def _stalled(self) -> str:
        crowd = self.crowd
        return (
            f"stalled: of {crowd.sent} messages sent, {crowd.acknowledged} were acknowledged, "
            f"and {crowd.received} deliveries came"
        )
