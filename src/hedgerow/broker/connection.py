"""One network connection to the broker: bytes in, bytes out, and what it negotiated.

`receive_data` cuts a chunk into packets. Common ones take the short path (`short_path.py`), with no object
per packet; the rest go through the codec to the handler that its `Dialect` names. A packet that breaks a
rule raises `ProtocolError` inside, and `refuse` is the one place that turns it into the reason code and the
close.

Output collects in `out` and is taken once per chunk. A connection whose reader is slow is
*congested*: nothing more is handed to the transport, QoS 0 is dropped beyond `queue_bytes`, and
QoS 1 and 2 wait in the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Final, NamedTuple

from hedgerow.broker import session_end
from hedgerow.broker.batch import Batch
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.deliveries import (
    BYTES_PER_WORK,
    encode_properties,
    encode_property_block,
    note_dropped,
    pump,
)
from hedgerow.broker.events import (
    ClientDisconnected,
    ConnectionFailed,
    ConnectionRefused,
    ProtocolBroken,
    PublicationRefused,
)
from hedgerow.broker.exchange import ConnectionSeal
from hedgerow.broker.ids import encode_id, identify_as
from hedgerow.broker.owners import MAX_CONNECT_BYTES, owner_of
from hedgerow.broker.pool import Pool
from hedgerow.broker.role import ShortPath
from hedgerow.broker.routes import Route
from hedgerow.broker.session import Channel, Pause
from hedgerow.compiling import mypyc_attr
from hedgerow.duplicates import Life
from hedgerow.errors import ProtocolError, TopicError
from hedgerow.message import Message, Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    AUTH,
    CONNECT,
    DISCONNECT,
    MQTT_3_1_1,
    MQTT_5,
    MQTT_EXTENDED,
    PUBLISH,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pubcallback,
)
from hedgerow.mqtt.properties import with_length
from hedgerow.mqtt.reasons import Reason, describe
from hedgerow.mqtt.refusals import read_refused
from hedgerow.topics import validate_name

# Work is counted in units of about a microsecond: see `Broker.begin_turn`.
PACKET_WORK: Final = 5
MAX_CACHED_TOPICS = 1_024  # Per publisher; one that invents topics starts its cache anew.
MAX_UNREAD_ANSWERS = 10_000  # To one client, before we stop reading from it.
MAX_UNREAD_ANSWER_BYTES = 128 * 1024  # A SUBACK may have 2 MB.

SMALL_PACKET_BYTES: Final = (
    16 * 1024
)  # So much of a packet may come, and the rest later, without being counted.
MAX_PUBLISH_HEAD_BYTES = 2 + 65_535 + 2  # topic and packet identifier
# Topics of 64 KiB in 64 aliases each way would be 8 MiB for each connection.
MAX_ALIAS_BYTES = 128 * 1024  # that a client may have us remember
MAX_ALIASED_TOPIC = 1_024  # Longer ones we send in full.


class State(Enum):
    NEW = "new"
    EXCHANGE = "exchange"  # CONNECT named an authentication method; AUTH is next
    LOGIN = "login"  # the shell is checking the password; nothing more is read
    CONNECTED = "connected"
    CLOSED = "closed"


# By names of the module: a member of an enumeration takes ten times as long to look up.
NEW: Final = State.NEW
CONNECTED: Final = State.CONNECTED
EXCHANGE: Final = State.EXCHANGE
CLOSED: Final = State.CLOSED

# What has come meanwhile is not looked at.
MUST_WAIT: Final = Pause.LOGIN | Pause.POSTPONED | Pause.DELIVERING | Pause.METERED


class Dialect(NamedTuple):
    """What the other end may say."""

    opening_packet: int
    opening_name: str
    handlers: Mapping[int, tuple[Callable[[Any, Packet], None], State]]
    """Packet type → (handler, the state in which the packet is legal)."""


class OwnLife:
    """In the place of a `Life`: whatever is of this origin has been here (`ids.has_been_here`)."""

    is_forgotten = False

    def __init__(self, origin: str) -> None:
        self.key = (origin, 0)

    def seen(self, sequence: int) -> bool:
        return True

    def note_run(self, first: int, count: int) -> bool:
        return False


@mypyc_attr(allow_interpreted_subclasses=True)  # as `DialledConnection` does
class Connection(Channel):
    __slots__ = (
        "alias_bytes",
        "aliases_in",
        "aliases_out",
        "aliases_out_maximum",
        "anonymous",
        "broker",
        "closing",
        "dialect",
        "heard_at",
        "keep_alive_s",
        "lives",
        "packet_bytes",
        "partial",
        "paused",
        "pauses",
        "problem_information",
        "received_before",
        "repeated",
        "reserved",
        "seal",
        "short_path",
        "skipping",
        "state",
        "topics",
        "unfinished",
        "unread_answer_bytes",
        "unread_answers",
        "unsealed",
        "wanted",
    )

    def __init__(
        self,
        broker: BrokerCore,
        now: float,
        address: str,
        anonymous: bool,
        certificate_name: str | None,
        transport: str,
        dialect: Dialect,
    ) -> None:
        super().__init__(now, address, transport)
        self.broker = broker
        self.anonymous = anonymous
        self.certificate_name = certificate_name
        self.dialect = dialect
        self.state = NEW
        self.keep_alive_s = 0.0
        self.heard_at = now
        self.problem_information = True
        self.short_path: ShortPath = {}
        self.lives: dict[bytes, Life | OwnLife] = {}  # by beginning of an id: whose messages came this way
        self.alias_bytes = 0  # of the topics in `aliases_in`
        self.aliases_in: dict[int, str] | None = None
        self.aliases_out: dict[str, int] | None = None
        self.aliases_out_maximum = 0
        self.topics: dict[bytes, Route] | None = None  # topics that this client has shown it may publish
        # What may have come before comes again: true where a chunk was such, alone, and is handled.
        self.repeated: Callable[[Any, bytes], bool] | None = None
        self.partial: bytearray | None = None  # the beginning of a packet
        self.packet_bytes = broker.limits.packet_bytes  # the largest packet that it may send
        self.skipping = 0  # so many bytes are still to come of a packet that is passed over
        self.wanted = 0  # how long `partial` must be before it is worth looking at
        # For a packet that has come in part: what was taken of which pool, and for whom.
        self.reserved: tuple[Pool, str | None, int] | None = None
        self.seal: ConnectionSeal | None = None  # what all bytes travel in, once an exchange is over
        self.unsealed = 0  # bytes in `out` that go before
        # Packets in `out` that this client's own called for, while congested, and their bytes.
        self.unread_answers = 0
        self.unread_answer_bytes = 0
        self.unfinished: Callable[[], None] | None = None  # the rest of a packet that was too much work
        self.received_before = 0  # QoS 2 publications that an earlier connection left unreleased
        self.pauses = 0
        self.paused = False  # for the shell: whether there is any
        self.closing = False

    @property
    def is_connected(self) -> bool:
        return self.state is CONNECTED

    @property
    def is_of_broker(self) -> bool:
        """Do messages come this way that others have published, at another broker?"""
        return self.inbound is not None and self.session is not None

    # Bytes in

    def receive_data(self, data: bytes, now: float) -> None:
        broker = self.broker
        broker.now = now
        broker.stats.bytes_received += len(data)
        if self.seal is not None:
            data = self._open_sealed(self.seal, data)
            if not data:
                return  # Whoever wrote that, the peer has yet to be heard.
        self.heard_at = now
        repeated = self.repeated
        if repeated is not None and repeated(self, data):
            return
        if self.state is CLOSED:
            return  # The shell had read it before it heard of the close.
        if self.skipping:
            size = len(data)
            data = data[self.skipping :]
            self.skipping -= size - len(data)
            if not data:
                return
        begun = self.partial
        if begun is not None:
            size = len(begun) + len(data)
            if size < self.wanted or (self.paused and self.pauses & MUST_WAIT):
                begun += data
                self.hold_partly(size)
                return
            data = b"".join((begun, data))  # in one copy: the beginning is short, and what came may be long
            self.partial = None
            self._release()
        elif self.paused and self.pauses & MUST_WAIT:
            self.partial = bytearray(data)
            return
        self._receive(data)

    def _open_sealed(self, seal: ConnectionSeal, chunk: bytes) -> bytes:
        if self.state is CLOSED:
            return b""
        try:
            return seal.open(chunk)
        except ProtocolError as error:
            # Without a DISCONNECT: the peer did not write this, and must not look for what it sent amiss.
            self.broker.stats.protocol_errors += 1
            self.end(str(error))
            return b""

    def seal_with(self, seal: ConnectionSeal | None) -> None:
        """What is still in `out`, such as the last AUTH or CONNACK, leaves as it is. What is still to be read
        comes sealed."""
        self.seal = seal
        self.unsealed = sum(map(len, self.out))
        if seal is not None and self.partial is not None:
            self.partial = bytearray(self._open_sealed(seal, bytes(self.partial))) or None

    def _receive(self, data: bytes) -> None:
        self.broker.begin_turn()
        out_before = len(self.out)
        seal = self.seal
        try:
            position = self._receive_packets(data)
            if self.seal is not seal and self.seal is not None:
                data = self._open_sealed(self.seal, data[position:])
                position = self._receive_packets(data) if data else 0
        except ProtocolError as error:
            self.refuse(error)
            return
        if self.state is CLOSED:
            return
        if position < len(data):
            self.partial = bytearray(data[position:])
            self.repeated = None
        if self.attachment is not None:
            self.attachment.input_handled()
        if self.congested:
            self._count_unread(out_before)
        if self.partial is not None:
            self.hold_partly(len(self.partial))
        elif self.reserved is not None:
            self._release()

    def _count_unread(self, out_before: int) -> None:
        """What the client's own packets called for, since there was so much in `out`."""
        self.unread_answers += len(self.out) - out_before
        self.unread_answer_bytes += sum(map(len, self.out[out_before:]))
        if self.unread_answers > MAX_UNREAD_ANSWERS or self.unread_answer_bytes > MAX_UNREAD_ANSWER_BYTES:
            self.pause(Pause.UNREAD)

    def _receive_packets(self, data: bytes) -> int:
        """Handle every whole packet of `data`, or as many as fit into a turn; where the rest begins."""
        broker = self.broker
        stats = broker.stats
        max_bytes = self.packet_bytes
        connected = self.state is CONNECTED
        if not connected:
            max_bytes = min(max_bytes, self._check_opening(data))
        position = 0
        end = len(data)
        self.wanted = 2
        while end - position >= 2:
            first = data[position]
            length = data[position + 1]
            if length < 0x80:
                body = position + 2
                stop = body + length
            else:
                if end - position > 2 and 0 < data[position + 2] < 0x80:  # Nearly all others have two bytes.
                    body = position + 3
                    stop = body + (length & 0x7F | data[position + 2] << 7)
                else:
                    header = codec.read_header(data, position)
                    if header is None:
                        self.wanted = end - position + 1
                        break
                    body, stop = header
                if stop - position > max_bytes:
                    after = self._pass_over_large(data, position, body, stop)
                    if not after:
                        break
                    position = after
                    continue
            if stop > end:
                self.wanted = stop - position
                if not connected:
                    self._reserve(self.wanted)
                break
            if broker.work > broker.turn_ends_at:
                broker.postpone(self)
                break
            if connected:
                short = self.short_path.get(first)
                if short is not None:
                    after = short(self, data, position, body, stop)
                    if after:
                        if after < 0:
                            break  # It has to wait (`metered.py`).
                        position = after
                        continue
            stats.packets_received += 1
            broker.work += PACKET_WORK + (stop - body) // BYTES_PER_WORK
            if first >> 4 == PUBLISH:
                stats.publish_bytes_received += stop - position
            if first >> 4 == AUTH and self.exchange is not None and stop < end:
                raise _hasty()
            try:
                self._handle(first, data[body:stop])
            except ProtocolError as error:
                if not self._pass_over(first, data[body:stop], error):
                    raise
            position = stop
            if self.state is not CONNECTED or (self.paused and self.pauses & Pause.POSTPONED):
                if self.state is EXCHANGE and stop < end:
                    raise _hasty()
                break
            if not connected:
                if self.seal is not None and self.exchange is None:
                    break  # What is behind it is sealed.
                connected = True
                max_bytes = self.packet_bytes
        return position

    def _check_opening(self, data: bytes) -> int:
        """How large a packet may be that begins like this, before the CONNECT is accepted."""
        dialect = self.dialect
        packet_type = data[0] >> 4 if data else dialect.opening_packet
        if self.exchange is not None and packet_type == AUTH:
            return SMALL_PACKET_BYTES
        if self.state is EXCHANGE:
            if packet_type == DISCONNECT:
                return SMALL_PACKET_BYTES
            raise ProtocolError(Reason.PROTOCOL_ERROR, "neither AUTH nor DISCONNECT", "MQTT-3.1.2-30")
        if packet_type != dialect.opening_packet:
            raise ProtocolError(
                Reason.PROTOCOL_ERROR, f"the first packet is not {dialect.opening_name}", "MQTT-3.1.0-1"
            )
        return MAX_CONNECT_BYTES

    def _reserve(self, size: int) -> None:
        """Room for a CONNECT that comes in pieces, before anybody has proved anything."""
        site = owner_of(None, self.address)
        if size > SMALL_PACKET_BYTES and not self._take(self.broker.owners.unknown_bytes, site, size):
            raise ProtocolError(Reason.SERVER_BUSY, "too many large CONNECTs are on their way")

    def hold_partly(self, size: int) -> None:
        """So many bytes of a packet have come, and not all. Its room is asked for in steps, as it fills."""
        reserved = self.reserved[2] if self.reserved is not None else SMALL_PACKET_BYTES
        if size <= reserved or self.session is None:
            return
        wanted = min(2 * size, max(size, self.wanted))
        if not self._take(self.broker.owners.packet_bytes, self.session.owner, wanted):
            reason = "too many large packets of this user or address, or in all, have come in part"
            self.refuse(ProtocolError(Reason.QUOTA_EXCEEDED, reason))

    def _take(self, pool: Pool, owner: str | None, size: int) -> bool:
        self._release()
        if not pool.has_room(owner, size):
            return False
        pool.change(owner, size)
        self.reserved = pool, owner, size
        return True

    def _release(self) -> None:
        if self.reserved is not None:
            pool, owner, size = self.reserved
            pool.change(owner, -size)
            self.reserved = None

    def _handle(self, first: int, body: bytes) -> None:
        handler, legal_in = self.dialect.handlers.get(first >> 4, (None, None))
        if handler is None:
            reason_code = Reason.PROTOCOL_ERROR if first >> 4 else Reason.MALFORMED_PACKET
            raise ProtocolError(reason_code, f"packet type {first >> 4} is not sent this way", "§2.1.2")
        if legal_in is not self.state and self.state is not EXCHANGE:
            raise ProtocolError(
                Reason.PROTOCOL_ERROR, f"a second {self.dialect.opening_name}", "MQTT-3.1.0-2"
            )
        if first >> 4 == CONNECT:
            self._release()
            # A version that we do not know is told so in the words of 3.1.1, which all clients read.
            claimed = codec.peek_version(body)
            self.protocol_version = claimed if claimed in (0, 3, 5) else MQTT_3_1_1
            if claimed == MQTT_EXTENDED and not self.broker.client_role.is_extended:
                raise ProtocolError(Reason.UNSUPPORTED_PROTOCOL_VERSION, "version 255", "MQTT-3.1.2-2")
        takes_callbacks = self.session is not None and self.session.role.takes_callbacks
        packet = codec.decode(first, body, self.protocol_version, takes_callbacks)
        if isinstance(packet, Connect) and len(body) > SMALL_PACKET_BYTES and packet.names_method:
            # It would wait for its proof: 10,000 of them would be 5 GiB.
            raise ProtocolError(Reason.PACKET_TOO_LARGE, f"CONNECT of {len(body)} bytes with a method")
        handler(self, packet)

    def _pass_over(self, first: int, body: bytes, error: ProtocolError) -> bool:
        """Answer a PUBLISH of another broker whose content we do not take with an error, and go on.

        If we closed, it would come again for ever, and a node would have to guess what it was.
        """
        refused = read_refused(first, body, error) if self.is_of_broker else None
        if refused is None:
            return False
        if self.inbound is not None:
            self.inbound.published += 1
            self.inbound.refused += 1
        broker, who = self.broker, self.session.client_id if self.session is not None else self.address
        broker.stats.protocol_errors += 1
        broker.events.append(PublicationRefused(self.address, who, refused.topic, str(error)))
        if refused.qos:
            broker.durability.acknowledge(self, refused.answer(self.protocol_version), must_wait=False)
        return True

    def _pass_over_large(self, data: bytes, position: int, body: int, stop: int) -> int:
        """A packet that is larger than we take. Of a PUBLISH of another broker, which before MQTT 5 nobody
        can tell what we take, only the head is waited for, and the rest is dropped as it comes. Where to go
        on; 0: the head has yet to come."""
        error = ProtocolError(Reason.PACKET_TOO_LARGE, f"packet of {stop - position} bytes", "MQTT-3.2.2-15")
        head = min(body + MAX_PUBLISH_HEAD_BYTES, stop)
        if self.is_of_broker and data[position] >> 4 == PUBLISH and len(data) < head:
            self.wanted = head - position
            return 0
        if not self._pass_over(data[position], data[body:head], error):
            raise error
        self.broker.stats.packets_received += 1
        self.skipping = max(0, stop - len(data))
        self.repeated = None  # The rest of it may look like a packet.
        return min(stop, len(data))

    def go_on(self) -> None:
        """The CONNECT was accepted, or it is this client's turn again: go on with what has come since."""
        if self.state is not CONNECTED:
            return
        self.resume(Pause.LOGIN | Pause.POSTPONED)
        if self.unfinished is not None:
            unfinished, self.unfinished = self.unfinished, None
            self.broker.begin_turn()
            out_before = len(self.out)
            try:
                unfinished()
            except ProtocolError as error:
                self.refuse(error)
            if self.congested:
                self._count_unread(out_before)
        if self.partial is not None and not self.pauses & MUST_WAIT:
            data = bytes(self.partial)
            self.partial = None
            self._receive(data)

    # Bytes out

    def send(self, data: bytes) -> None:
        if not self.out:
            self.broker.dirty.append(self)
        self.out.append(data)

    def send_packet(self, packet: Packet) -> None:
        self.send(codec.encode(packet, self.protocol_version))
        self.broker.stats.packets_sent += 1

    def send_message(self, message: Message, retain: bool, identifiers: tuple[int, ...]) -> bool:
        data = self.encode_publish(message, 0, retain, identifiers)
        if data is None:
            return False
        return self.send_at_most_once(data, 1)

    def send_at_most_once(self, data: bytes, count: int) -> bool:
        stats = self.broker.stats
        if self.congested:
            if not self._may_leave_unread(len(data)):
                stats.publish_dropped += count
                note_dropped(self.broker, self.session, count)
                return False
            self.unread_bytes += len(data)
        stats.publish_sent += count
        stats.packets_sent += count
        stats.publish_bytes_sent += len(data)
        self.send(data)
        return True

    def _may_leave_unread(self, size: int) -> bool:
        broker, session = self.broker, self.session
        if self.unread_bytes + size > broker.limits.queue_bytes_in_memory:
            return False
        return session is None or broker.owners.may_queue(session, session.waiting_bytes + size, broker.now)

    def encode_publish(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        packet_id: int = 0,
        dup: bool = False,
        may_alias: bool = True,
    ) -> bytes | None:
        topic = message.topic
        if self.carries_ids:
            data = self._encode_identified(message, qos, retain, identifiers, packet_id, dup)
        elif self.protocol_version == MQTT_EXTENDED:
            message_id = str(message.id or self.broker.identify_late(message))
            packet = Pubcallback(topic, message.payload, qos, retain, dup, packet_id, (), message_id)
            data = codec.encode(packet, MQTT_EXTENDED)
        elif self.protocol_version < MQTT_5:
            data = codec.encode_plain_publish(message, qos, retain, packet_id, dup, b"")
        elif not message.properties and not identifiers and not self.aliases_out_maximum:
            data = codec.encode_plain_publish(message, qos, retain, packet_id, dup, b"\0")
        else:
            own: Properties = {}
            if identifiers:
                own["subscription_identifier"] = identifiers
            if self.aliases_out_maximum and may_alias:
                topic = self._alias(topic, own)
            properties = encode_properties(self.broker, message, own)
            data = codec.encode_plain_publish(message, qos, retain, packet_id, dup, properties, topic)
        if self.maximum_packet_size and len(data) > self.maximum_packet_size:
            self.broker.stats.publish_dropped += 1
            if topic and may_alias and self.aliases_out:
                self.aliases_out.pop(topic, None)  # Set by this very packet: the client will not hear of it.
            return None
        return data

    def _encode_identified(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        packet_id: int,
        dup: bool,
        topic: str | None = None,
    ) -> bytes:
        block = self.encode_id(message, qos, retain, topic)
        if message.properties or identifiers:
            own: Properties = {"subscription_identifier": identifiers} if identifiers else {}
            block += encode_property_block(self.broker, message, own)
        properties = with_length(block)
        return codec.encode_plain_publish(message, qos, retain, packet_id, dup, properties, topic)

    def encode_id(self, message: Message, qos: int, retain: bool, topic: str | None) -> bytes:
        """What is said of a message's id, under the name that the peer has for the topic."""
        return encode_id(self.broker, message)

    def id_blocks(self, batch: Batch, topic: bytes) -> list[bytes]:
        """The properties of each message of a batch, under that name."""
        return batch.id_blocks()

    def encode_run(self, batch: Batch, topic: bytes) -> bytes:
        """A batch as packets at QoS 0, under that name."""
        return batch.encode_at_most_once(topic)

    @property
    def compares_ages(self) -> bool:
        return self.carries_ids

    def takes_run(self, messages: Sequence[Message]) -> bool:
        return True

    def name_on_wire(self, topic: str) -> bytes | None:
        return topic.encode()

    def has_name_for(self, topic: str) -> bool:
        return True

    def note_run(self, origin: str, epoch: int, sequences: Sequence[int]) -> None:
        """A broker that knows ids need not be reminded of them."""

    def route_for(self, topic_bytes: bytes) -> Route | None:
        """The route of a topic that may come this way; None: the long way says why not."""
        route = self.topics.get(topic_bytes) if self.topics is not None else None
        if route is None or route.stale:
            route = self.find_route(topic_bytes)
        return route

    def find_route(self, topic_bytes: bytes, even_nobody: bool = True) -> Route | None:
        """The route of a topic that this client may publish to, remembered with the connection.

        `even_nobody`: one of a topic that nobody gets is remembered too. None for a topic that is wrong or
        forbidden: the long way refuses it. And None when the turn is over: what is left is postponed.
        """
        try:
            topic = validate_name(topic_bytes.decode())
        except (UnicodeDecodeError, TopicError):
            return None
        session = self.connected_session()
        if not session.role.may_write(session, topic) or self.broker.turn_is_over:
            return None
        route = self.broker.find_route(topic, even_nobody)
        if route.stale:
            return route
        topics = self.topics
        if topics is None:
            topics = self.topics = {}
        elif len(topics) >= MAX_CACHED_TOPICS:
            topics.clear()
        topics[topic_bytes] = route
        return route

    def identify(self, message: Message) -> None:
        """Set the id and the times that the packet tells, as far as this peer may give them."""
        identify_as(self.broker, message, self.connected_session().role, self)

    def forget_routes(self) -> None:
        self.lives.clear()  # Rights to give ids may be others too.
        self.topics = None
        self.repeated = None

    def _alias(self, topic: str, properties: Properties) -> str:
        """First come, first served: a topic keeps its alias for as long as the connection lives.

        A congested connection gets no new ones, since its packets may yet be dropped.
        """
        if self.aliases_out is None:
            self.aliases_out = {}
        alias = self.aliases_out.get(topic)
        if alias is not None:
            properties["topic_alias"] = alias
            return ""
        has_room = len(self.aliases_out) < self.aliases_out_maximum and len(topic) <= MAX_ALIASED_TOPIC
        if has_room and not self.congested:
            alias = self.aliases_out[topic] = len(self.aliases_out) + 1
            properties["topic_alias"] = alias
        return topic

    def take_output(self) -> bytes:
        if self.congested and not self.closing:
            return b""
        out = self.out
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        if self.unread_bytes or self.unread_answers:
            self.unread_bytes = self.unread_answers = self.unread_answer_bytes = 0
        if self.seal is not None:
            data = self._close_sealed(self.seal, data)
        self.broker.stats.bytes_sent += len(data)
        return data

    def _close_sealed(self, seal: ConnectionSeal, data: bytes) -> bytes:
        before, self.unsealed = data[: self.unsealed], max(0, self.unsealed - len(data))
        return before + seal.close(data[len(before) :])

    def set_congested(self, congested: bool, now: float) -> None:
        self.broker.now = now
        self.congested = congested
        if congested or self.state is CLOSED:
            return
        if self.out:
            self.broker.dirty.append(self)
        if self.session is not None:
            self.session.dropped = 0
            pump(self.broker, self)
        self.resume(Pause.UNREAD)

    def pause(self, reason: int) -> None:
        self.pauses |= reason
        self.repeated = None
        if not self.paused:
            self.paused = True
            self.broker.dirty.append(self)

    def resume(self, reason: int) -> None:
        self.pauses &= ~reason
        if self.paused and not self.pauses:
            self.paused = False
            self.broker.dirty.append(self)

    def check_time(self) -> None:
        """The time that was set for this connection has come."""
        if self.state is State.NEW:
            self.refuse_connect(Reason.MAXIMUM_CONNECT_TIME, "no CONNECT in time")
        elif self.state is EXCHANGE:
            self.refuse_connect(Reason.NOT_AUTHORIZED, "no AUTH in time")
        elif self.state is State.LOGIN:
            self.refuse_connect(Reason.SERVER_BUSY, "the password was not checked in time")
        elif self.attachment is not None:
            self.attachment.check_time()
        else:
            self.check_keep_alive()

    def check_keep_alive(self) -> None:
        broker = self.broker
        if self.keep_alive_s:
            if self.pauses & ~Pause.UNREAD:
                self.heard_at = broker.now  # It is we who do not listen.
            due = self.heard_at + self.keep_alive_s * 1.5
            if due <= broker.now:
                due = self.look_for_bytes() + self.keep_alive_s * 1.5
            if due <= broker.now:
                self.disconnect(Reason.KEEP_ALIVE_TIMEOUT, "nothing heard for 1.5 x keep alive")
            else:
                broker.arm(due, self)

    def look_for_bytes(self) -> float:
        """When the other end was heard last, with what has come and is still to be read: where the loop is
        late, it is we who do not listen."""
        if self.link is not None:
            self.heard_at = max(self.heard_at, self.broker.now - self.link.silent_s())
        return self.heard_at

    # The end

    def refuse(self, error: ProtocolError) -> None:
        """Answer a peer's mistake with its reason code, and close. Nothing else is disturbed."""
        broker = self.broker
        if error.reason_code == Reason.SERVER_BUSY:  # It is we who cannot.
            self.disconnect(error.reason_code, error.reason)
            return
        broker.stats.protocol_errors += 1
        if self.state is CONNECTED and self.session is not None:
            broker.events.append(
                ProtocolBroken(self.address, self.session.client_id, error.reason_code, str(error))
            )
            self.disconnect(error.reason_code, error.reason)
        else:
            self.refuse_connect(error.reason_code, str(error))

    def refuse_connect(
        self,
        reason_code: int,
        reason: str,
        client_id: str | None = None,
        properties: Properties | None = None,
    ) -> None:
        self.broker.stats.connections_refused += 1
        self.broker.events.append(ConnectionRefused(self.address, client_id, reason_code, reason))
        # MQTT 3.1.1 answers only what its return codes can say, and never a malformed CONNECT
        # (MQTT-3.1.4-1 there); without a readable version there is nobody to answer.
        malformed = reason_code in (Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR, Reason.PACKET_TOO_LARGE)
        if self.protocol_version == MQTT_5 or (self.protocol_version and not malformed):
            answer = Connack(False, reason_code, self.problem(reason) | (properties or {}))
            if self.has_room_for(codec.encode(answer, self.protocol_version)):
                self.send_packet(answer)
        self.end(f"refused: {reason}")

    def disconnect(self, reason_code: int, reason: str, server_reference: str | None = None) -> None:
        if self.state is CONNECTED and self.protocol_version == MQTT_5:
            properties = self.problem(reason)
            if server_reference is not None:
                properties["server_reference"] = server_reference
            self.send_packet(Disconnect(reason_code, properties))
        self.end(f"{describe(reason_code)}: {reason}" if reason else describe(reason_code))

    def fail(self, error: Exception) -> None:
        """Our own code failed while it served this peer: the connection ends, will and all, and no other.

        Left open it would be half dead: its input behind the failure lost, its will never published.
        """
        self._report_failure(error)
        try:
            self.disconnect(Reason.UNSPECIFIED_ERROR, "an error in this broker")
        except Exception as again:
            self._report_failure(again)
            with suppress(Exception):
                self.end("an error in this broker")  # if it did not come to that

    def _report_failure(self, error: Exception) -> None:
        self.broker.stats.connections_failed += 1
        client_id = self.session.client_id if self.session is not None else ""
        self.broker.events.append(ConnectionFailed(self.address, client_id, repr(error), error))

    def lost(self, now: float, was_closed: bool = False) -> None:
        """The transport is gone. `was_closed`: the peer closed or reset it; it did not just fall silent."""
        self.broker.now = now
        if was_closed and self.protocol_version < MQTT_5:
            self.far_reason = Reason.SUCCESS  # There is no DISCONNECT from a server that could say more.
        self.end("connection lost")

    def closed_by_client(self, with_will: bool) -> None:
        self.end("by the client", with_will)

    def end(self, reason: str, with_will: bool = True) -> None:
        if self.state is CLOSED:
            return
        self.report_end(reason)
        self.state = CLOSED
        self._release()
        self.aliases_in = None
        self.aliases_out = None
        self.closing = True
        self.partial = None
        self.repeated = None
        self.unfinished = None
        self.backlog = None
        self.timer_at = None
        self.topics = None
        self.broker.dirty.append(self)
        session_end.detach(self.broker, self, with_will)
        self.resending = None

    def report_end(self, reason: str) -> None:
        if self.session is not None:
            self.broker.events.append(ClientDisconnected(self.address, self.session.client_id, reason))

    def has_room_for(self, data: bytes) -> bool:
        """Is the packet within the client's Maximum Packet Size (MQTT-3.1.2-24)?"""
        return not self.maximum_packet_size or len(data) <= self.maximum_packet_size

    def problem(self, reason: str) -> Properties:
        """A reason string, unless it would exceed the client's Maximum Packet Size.

        CONNACK and DISCONNECT may carry one whatever Request Problem Information says (§3.1.2.11.7).
        """
        if not reason or self.protocol_version != MQTT_5:
            return {}
        text = reason[:200]
        if self.maximum_packet_size and len(text.encode()) + 20 > self.maximum_packet_size:
            return {}
        return {"reason_string": text}


def _hasty() -> ProtocolError:
    """Behind AUTH, or a CONNECT that names a method, nothing comes before the answer; what follows the last
    AUTH is sealed, and this was read with it."""
    return ProtocolError(Reason.PROTOCOL_ERROR, "more before the answer to AUTH or CONNECT", "MQTT-3.1.2-30")
