"""An MQTT client as a machine: bytes and `now` go in, events, bytes and deadlines come out.

A `Client` outlives its connections. The shell opens a link, calls `connect`, hands every chunk to
`receive_data`, writes what `take_output` returns after each call, calls `handle_timer` when
`deadline` has come and `lost` when the link is gone; `closing` says that the link is to be closed.
Then it may open the next one. What was published at QoS 1 or 2 and not acknowledged is sent again:
with DUP and in order when the server kept the session, as new when it did not, in which case the
subscriptions are made again too. Misuse by the caller raises at once; nothing that the network sends
raises, it ends the connection with the reason code that the specification names.

        connect            CONNACK success
    IDLE ────► CONNECTING ────────────► CONNECTED
      ▲            │ refused, timeout       │ DISCONNECT, a broken rule, no PINGRESP,
      └────────────┴────────────────────────┘ `disconnect`, `lost`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from itertools import count
from typing import Any

from hedgerow.errors import ProtocolError
from hedgerow.message import Message, MessageId, Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.client.events import (
    MAX_RECEIVE_MAXIMUM,
    Connected,
    ConnectOptions,
    Disconnected,
    Event,
    MessageReceived,
    Refused,
    Renewed,
)
from hedgerow.mqtt.client.receiver import Receiver
from hedgerow.mqtt.client.requests import Requests
from hedgerow.mqtt.client.sender import MAX_PACKET_SIZE, IdentifyingEncoder, PublishEncoder, Sender
from hedgerow.mqtt.extension import Renewal
from hedgerow.mqtt.ids import NODE_PROPERTY, node_of
from hedgerow.mqtt.packets import (
    AUTH,
    CONNACK,
    DISCONNECT,
    MQTT_3_1_1,
    MQTT_5,
    MQTT_EXTENDED,
    PINGRESP,
    PUBACK,
    PUBCALLBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Renew,
    Suback,
    Subscription,
    Unsuback,
)
from hedgerow.mqtt.reasons import Reason, describe


class ClientState(Enum):
    IDLE = "idle"
    CONNECTING = "connecting"
    CONNECTED = "connected"


_Acknowledge = Callable[[int, int, str, list[Event]], None]


class Client:
    def __init__(self, options: ConnectOptions) -> None:
        self.options = options
        self.client_id = options.client_id
        self.state = ClientState.IDLE
        self.closing = False
        """The link is of no more use: write what `take_output` has, then close it."""
        self.far_node: str | None = None
        """The name of the server in the fabric, if it has told one."""

        # The session: it outlives a connection.
        self._output: list[bytes] = []
        self._requests = Requests()
        self._sender = Sender(self._output, self._requests, options)
        self._receiver = Receiver(self._output, options)
        sender, receiver = self._sender, self._receiver
        self._acknowledgements: dict[type, _Acknowledge] = {
            Puback: sender.handle_puback,
            Pubrec: sender.handle_pubrec,
            Pubrel: receiver.handle_pubrel,
            Pubcomp: sender.handle_pubcomp,
        }
        # By first byte: the form of four bytes, which means success and is what nearly every one is.
        self._short_acknowledgements: dict[int, _Acknowledge] = {
            0x40: sender.handle_puback,
            0x50: sender.handle_pubrec,
            0x62: receiver.handle_pubrel,
            0x70: sender.handle_pubcomp,
        }
        self._handles = count(1)
        self._sequences = count(1)
        self._supporter = ""  # HOST:PORT that the server of the extension told last
        self._had_session = False

        self._reset(0.0)

    def _reset(self, now: float) -> None:
        """Forget what belongs to one connection only."""
        self._output.clear()
        self._buffer = bytearray()
        self._needed = 0
        self._keep_alive_s = float(self.options.keep_alive_s)
        self._connack_due_at = now + self.options.connect_timeout_s
        self._now = self._sent_at = self._heard_at = now
        self._ping_sent_at: float | None = None
        self._reading = True

    @property
    def connected(self) -> bool:
        return self.state is ClientState.CONNECTED

    @property
    def unacknowledged(self) -> int:
        """QoS 1 and 2 publications that are not over."""
        return len(self._sender.outbox)

    @property
    def unanswered(self) -> bool:
        """Does anything wait for an answer of the server?"""
        return bool(len(self._sender.outbox) or self._requests)

    @property
    def identifies_subscriptions(self) -> bool:
        """May SUBSCRIBE carry a subscription identifier?"""
        return self.options.version == MQTT_5 and self._requests.identifiers_available

    # The connection's life.

    def connect(self, now: float) -> None:
        """Begin on a new link."""
        if self.state is not ClientState.IDLE:
            raise RuntimeError(f"connect: the client is {self.state.value}")
        options = self.options
        self._reset(now)
        self.closing = False
        self.state = ClientState.CONNECTING
        self._clean_start = options.clean_start and not (self._had_session and self._keeps_session)
        properties = options.properties.copy()
        if options.session_expiry_s:
            properties["session_expiry_interval"] = options.session_expiry_s
        if options.receive_maximum != MAX_RECEIVE_MAXIMUM:
            properties["receive_maximum"] = options.receive_maximum
        if options.maximum_packet_size is not None:
            properties["maximum_packet_size"] = options.maximum_packet_size
        if options.topic_alias_maximum:
            properties["topic_alias_maximum"] = options.topic_alias_maximum
        if options.identifies:
            said = properties.get("user_property", ())
            properties["user_property"] = ((NODE_PROPERTY, options.origin or ""), *said)
        packet = Connect(
            self.client_id,
            options.version,
            self._clean_start,
            options.keep_alive_s,
            options.username,
            options.password,
            options.will,
            properties,
        )
        self._send(packet)

    @property
    def _keeps_session(self) -> bool:
        """Does the server keep the session between connections, so that it can be resumed?"""
        options = self.options
        if options.version == MQTT_EXTENDED:
            return True
        return options.session_expiry_s > 0 if options.version == MQTT_5 else not options.clean_start

    def disconnect(self, now: float, properties: Properties | None = None) -> None:
        """End the connection from this side; without one, nothing happens."""
        self._now = now
        if self.state is ClientState.CONNECTED:
            self._send(Disconnect(Reason.SUCCESS, properties or {}))
        self._end()

    def lost(self, now: float, reason: str = "the link was lost") -> list[Event]:
        """The link is gone."""
        self._now = now
        events: list[Event] = []
        self._end(events, Disconnected(reason))
        self._output.clear()
        return events

    def _end(self, events: list[Event] | None = None, event: Event | None = None) -> None:
        if self.state is ClientState.IDLE:
            return
        self.state = ClientState.IDLE
        self.closing = True
        self._sender.connection_ended()
        self._requests.connection_ended()
        if events is not None and event is not None:
            events.append(event)

    def _break_off(self, error: ProtocolError, events: list[Event]) -> None:
        """The one place that turns the server's mistake into a reason code and a close (§4.13)."""
        # Before CONNACK the server may not be one of MQTT at all, and after a CONNECT nothing is agreed.
        if self.state is ClientState.CONNECTED and self.options.version == MQTT_5:
            self._send(Disconnect(error.reason_code))
        self._end(events, Disconnected(f"the server broke a rule: {error}", error.reason_code))

    # Time.

    def deadline(self) -> float | None:
        """When `handle_timer` is to be called; None while nothing is due at any time."""
        if self.state is ClientState.CONNECTING:
            return self._connack_due_at
        if self.state is ClientState.IDLE or not self._keep_alive_s:
            return None
        return min(self._ping_due_at, self._dead_at)

    @property
    def _ping_due_at(self) -> float:
        # Counted from what was heard too: publications into a dead link must not keep it alive.
        since = min(self._sent_at, self._heard_at) if self._ping_sent_at is None else self._ping_sent_at
        return since + self._keep_alive_s

    @property
    def _dead_at(self) -> float:
        if self._ping_sent_at is None or not self._reading:
            return float("inf")
        # Whatever arrives counts: the PINGRESP may stand behind megabytes on a slow link.
        return max(self._ping_sent_at, self._heard_at) + self._ping_timeout_s

    @property
    def _ping_timeout_s(self) -> float:
        return min(self.options.ping_timeout_s, self._keep_alive_s)

    def handle_timer(self, now: float) -> list[Event]:
        self._now = now
        events: list[Event] = []
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return events
        if self.state is ClientState.CONNECTING:
            reason = f"no CONNACK in {self.options.connect_timeout_s:g} s"
            self._end(events, Disconnected(reason))
        elif now >= self._dead_at:
            reason = f"no answer to PINGREQ in {self._ping_timeout_s:g} s"
            self._end(events, Disconnected(reason))
        else:
            self._ping_sent_at = now
            self._send(Pingreq())
        return events

    def set_reading(self, reading: bool, now: float) -> None:
        """While the shell does not read, silence says nothing about the link."""
        self._now = now
        if reading and not self._reading:
            self._heard_at = now
        self._reading = reading

    # Bytes.

    def take_output(self) -> bytes:
        if not self._output:
            return b""
        self._sent_at = self._now
        data = b"".join(self._output)
        self._output.clear()
        return data

    def _send(self, packet: Packet) -> None:
        self._output.append(codec.encode(packet, self.options.version))

    def receive_data(self, data: bytes, now: float) -> list[Event]:
        events: list[Event] = []
        if self.state is ClientState.IDLE:
            return events
        self._now = self._heard_at = now
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return events
            data = bytes(self._buffer)
            self._buffer.clear()
        try:
            position = self._receive_packets(data, events)
        except ProtocolError as error:
            self._break_off(error, events)
            return events
        if position < len(data):
            self._buffer += memoryview(data)[position:]
        self._sender.send_queued(now)
        return events

    def _receive_packets(self, data: bytes, events: list[Event]) -> int:
        """Handle every whole packet, and return where the rest begins."""
        position = 0
        end = len(data)
        largest = self.options.maximum_packet_size or MAX_PACKET_SIZE
        self._needed = 0
        while end - position >= 2 and self.state is not ClientState.IDLE:
            first_byte = data[position]
            size = data[position + 1]
            start = position + 2
            stop = start + size
            if size > 127:
                header = codec.read_header(data, position)
                if header is None:
                    break
                start, stop = header
            if stop - position > largest:
                raise ProtocolError(
                    Reason.PACKET_TOO_LARGE,
                    f"a packet of {stop - position} bytes, of at most {largest}",
                    "MQTT-3.1.2-24",
                )
            if stop > end:
                self._needed = stop - position
                break
            if self.state is not ClientState.CONNECTED:
                self._handle_packet(first_byte, data[start:stop], events)
            elif first_byte >> 4 == PUBLISH:
                self._receiver.handle_publish(first_byte, data, start, stop, self._now, events)
            elif first_byte >> 4 == PUBCALLBACK and self.options.version == MQTT_EXTENDED:
                self._receiver.handle_pubcallback(first_byte, data, start, stop, self._now, events)
            elif (
                size == 2
                and first_byte in self._short_acknowledgements
                and (packet_id := data[start] << 8 | data[start + 1])
            ):
                self._short_acknowledgements[first_byte](packet_id, Reason.SUCCESS, "", events)
            else:
                self._handle_packet(first_byte, data[start:stop], events)
            position = stop
        return position

    def _handle_packet(self, first_byte: int, body: bytes, events: list[Event]) -> None:
        packet_type = first_byte >> 4
        handler, legal_state = _HANDLERS.get(packet_type, (None, None))
        may_renew = packet_type == CONNACK and self.options.version == MQTT_EXTENDED
        if handler is None or (self.state is not legal_state and not may_renew):
            raise ProtocolError(
                Reason.PROTOCOL_ERROR, f"packet type {packet_type} while {self.state.value}", "§4.13"
            )
        version = self.options.version
        if packet_type == CONNACK and len(body) == 2:
            # A server that knows no MQTT 5 refuses it in the words of 3.1.1 (3.1.1 §3.2).
            version = min(version, MQTT_3_1_1)
        handler(self, codec.decode(first_byte, body, version), events)

    # CONNACK, and how a session goes on.

    def _handle_connack(self, packet: Connack | Renew, events: list[Event]) -> None:
        if isinstance(packet, Renew):
            self._handle_renew(packet, events)
            return
        if self.state is ClientState.CONNECTED:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "a second CONNACK", "§3.2")
        found = packet.properties
        if packet.reason_code:
            reason = found.get("reason_string") or describe(packet.reason_code)
            self._end(events, Refused(packet.reason_code, reason, found.get("server_reference")))
            return
        if packet.session_present and self._clean_start:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "session present after a clean start", "MQTT-3.2.2-4")
        options = self.options
        self.state = ClientState.CONNECTED
        self.client_id = found.get("assigned_client_identifier", self.client_id)
        self._keep_alive_s = float(found.get("server_keep_alive", options.keep_alive_s))
        events.append(
            Connected(packet.session_present, self.client_id, options.version, int(self._keep_alive_s), found)
        )
        self._had_session = True
        self._receiver.connected(packet.session_present)
        self._receiver.has_asked = self._requests.has_asked
        self.far_node = node_of(found)
        encoder = (IdentifyingEncoder if options.identifies else PublishEncoder)(
            options.version,
            found.get("topic_alias_maximum", 0),
            found.get("maximum_packet_size", MAX_PACKET_SIZE),
            found.get("maximum_qos", 2),
            bool(found.get("retain_available", 1)),
        )
        window = min(found.get("receive_maximum", MAX_RECEIVE_MAXIMUM), options.max_in_flight)
        self._sender.connected(encoder, window, packet.session_present, events)
        self._requests.connected(packet.session_present, found, events)
        self._send_requests()

    def _handle_renew(self, packet: Renew, events: list[Event]) -> None:
        address = packet.address or self._supporter
        if not address:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "a renewal that says nowhere where", "§extension")
        if packet.code == Renewal.CONNECTION:
            self._supporter = address
            if self.state is ClientState.CONNECTING:
                self._handle_connack(Connack(packet.session_present), events)
        elif self.state is ClientState.CONNECTING:
            reason = describe(Reason.USE_ANOTHER_SERVER)
            self._end(events, Refused(Reason.USE_ANOTHER_SERVER, reason, address))
            return
        events.append(Renewed(packet.code, address, packet.topics))

    # From one server to another.

    def successor(self, clean_start: bool, active: Sequence[str] = ()) -> Client:
        """A machine for a connection to another server, with the same subscriptions.

        When it `is_settled` it is to `take_over`: from then on the application's calls go to it, and this
        one finishes what is in flight. When that `is_finished`, or the connection is lost, it `inherit`s
        the rest. `active` as in `Renew.topics`. Messages that came here do not come from it again, where
        servers tell their ids.
        """
        other = Client(replace(self.options, clean_start=clean_start))
        other.client_id = self.client_id
        other._handles = self._handles
        other._sequences = self._sequences
        other._receiver.sightings = self._receiver.sightings
        other._requests.begin_from(self._requests, active)
        return other

    @property
    def is_settled(self) -> bool:
        return self.state is ClientState.CONNECTED and not self._requests

    @property
    def is_finished(self) -> bool:
        """Does nothing wait for an answer, on either side?"""
        return not self.unanswered and self._receiver.is_idle

    def take_over(self, predecessor: Client, now: float) -> list[Event]:
        self._now = now
        events: list[Event] = []
        self._requests.follow(predecessor._requests)
        self._sender.follow(predecessor._sender, events)
        self._send_requests()
        self._sender.send_queued(now)
        return events

    def inherit(self, predecessor: Client, now: float) -> list[Event]:
        """Do again what the predecessor, whose connection is over, was not told the end of."""
        self._now = now
        events: list[Event] = []
        self._requests.inherit(predecessor._requests)
        self._sender.inherit(predecessor._sender, events)
        self._send_requests()
        self._sender.send_queued(now)
        return events

    def ping(self, now: float) -> None:
        """Ask for a sign that everything which the server sent before has come."""
        self._now = self._ping_sent_at = now
        self._send(Pingreq())

    @property
    def awaits_ping(self) -> bool:
        return self._ping_sent_at is not None

    # Messages.

    def publish(self, message: Message, now: float) -> int:
        """Send, or queue, a message. The handle that `Published` will name; 0 at QoS 0, which has none.

        QoS 0 needs a connection. RefusedError when the server has said that it would not take it.
        """
        self._now = now
        if self.options.origin is not None and message.id is None:
            message = self._identified(message)
        handle = self._take_handle() if message.qos else 0
        self._sender.publish(message, handle, now)
        return handle

    def _identified(self, message: Message) -> Message:
        """A copy: who sends one object twice means two messages."""
        options = self.options
        message_id = MessageId(options.origin or "", options.epoch, next(self._sequences))
        return Message(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            message.properties,
            message_id,
            message.expires_at,
        )

    def _take_handle(self) -> int:
        return next(self._handles)

    def acknowledge(self, message: MessageReceived) -> None:
        """The application is done with a message (`manual_acknowledgement`).

        PUBACK and PUBREC leave in the order of the messages (MQTT-4.6.0-2), whatever the order of
        these calls. A QoS 1 message of an earlier connection is not acknowledged any more: the
        server sends it again. A copy of it that another server has sent (`successor`) is: that
        client is to be told as well.
        """
        self._receiver.acknowledge(message)

    def hold_acknowledgements(self, holding: bool) -> None:
        """While the application does not keep up, let the server's window stop QoS 1 and 2."""
        self._receiver.hold_acknowledgements(holding)

    # Subscriptions.

    def subscribe(
        self, subscriptions: Sequence[Subscription], now: float, properties: Properties | None = None
    ) -> int:
        """Subscribe now, or as soon as there is a connection. The handle that `Subscribed` will name."""
        self._now = now
        handle = self._take_handle()
        self._requests.subscribe(handle, subscriptions, properties or {})
        self._receiver.has_asked = True
        self._send_requests()
        return handle

    def unsubscribe(self, topic_filters: Sequence[str], now: float) -> int:
        self._now = now
        handle = self._take_handle()
        self._requests.unsubscribe(handle, topic_filters)
        self._send_requests()
        return handle

    def _send_requests(self) -> None:
        if self.state is ClientState.CONNECTED:
            for packet in self._requests.take(self._sender.outbox.allocate_packet_id):
                self._send(packet)

    def _handle_answer(self, packet: Suback | Unsuback, events: list[Event]) -> None:
        self._requests.answered(packet, events)

    # The rest.

    def _handle_acknowledgement(
        self, packet: Puback | Pubrec | Pubrel | Pubcomp, events: list[Event]
    ) -> None:
        reason = packet.properties.get("reason_string", "")
        self._acknowledgements[type(packet)](packet.packet_id, packet.reason_code, reason, events)

    def _handle_pingresp(self, packet: Packet, events: list[Event]) -> None:
        self._ping_sent_at = None

    def _handle_disconnect(self, packet: Disconnect, events: list[Event]) -> None:
        if self.options.version < MQTT_5:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "DISCONNECT from a server", "§3.14")
        found = packet.properties
        reason = found.get("reason_string") or describe(packet.reason_code)
        reference = found.get("server_reference")
        self._end(events, Disconnected(f"the server disconnected: {reason}", packet.reason_code, reference))

    def _handle_auth(self, packet: Packet, events: list[Event]) -> None:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "AUTH, which was not agreed on", "MQTT-4.12.0-6")


_Handler = Callable[[Client, Any, list[Event]], None]

# What a server may send, and when.
_HANDLERS: dict[int, tuple[_Handler, ClientState]] = {
    CONNACK: (Client._handle_connack, ClientState.CONNECTING),
    AUTH: (Client._handle_auth, ClientState.CONNECTING),
    PUBACK: (Client._handle_acknowledgement, ClientState.CONNECTED),
    PUBREC: (Client._handle_acknowledgement, ClientState.CONNECTED),
    PUBREL: (Client._handle_acknowledgement, ClientState.CONNECTED),
    PUBCOMP: (Client._handle_acknowledgement, ClientState.CONNECTED),
    SUBACK: (Client._handle_answer, ClientState.CONNECTED),
    UNSUBACK: (Client._handle_answer, ClientState.CONNECTED),
    PINGRESP: (Client._handle_pingresp, ClientState.CONNECTED),
    DISCONNECT: (Client._handle_disconnect, ClientState.CONNECTED),
}
