"""What each packet from a far broker means.

Acknowledgements are handled as those of clients; what only servers send is handled here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hedgerow.errors import ProtocolError
from hedgerow.fabric.bridges.stamps import is_control
from hedgerow.message import Message
from hedgerow.mqtt.broker.connection import HANDLERS, State
from hedgerow.mqtt.broker.handle_publish import accept
from hedgerow.mqtt.broker.ids import identify_from, node_of
from hedgerow.mqtt.broker.peers import publish_identified
from hedgerow.mqtt.broker.short_path import SHORT_PATH
from hedgerow.mqtt.packets import (
    CONNACK,
    DISCONNECT,
    MQTT_5,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Connack,
    Disconnect,
    Packet,
    Publish,
    Suback,
)
from hedgerow.mqtt.reasons import FAILURE, Reason, describe

if TYPE_CHECKING:
    from hedgerow.fabric.bridges.far_connection import FarConnection

MAX_REASON = 200  # characters of what the far broker says


def handle_connack(connection: FarConnection, packet: Packet) -> None:
    assert isinstance(packet, Connack)
    if packet.reason_code:
        connection.bridge.handle_refused(connection, packet.reason_code, _reason_of(packet))
        return
    connection.far_node = node_of(packet.properties)
    if connection.far_node == connection.broker.node_id:
        connection.bridge.handle_self(connection)
        return
    connection.establish(packet)
    connection.subscribe()
    connection.bridge.handle_connected(connection)


def _handle_publish(connection: FarConnection, packet: Packet) -> None:
    assert isinstance(packet, Publish)
    broker = connection.broker
    broker.stats.publish_bytes_received += len(packet.payload) + len(packet.topic)
    if not packet.topic or "topic_alias" in packet.properties:
        raise ProtocolError(
            Reason.TOPIC_ALIAS_INVALID, "a topic alias, of which we allow none", "MQTT-3.1.2-27"
        )
    if connection.foreign is not None and is_control(packet.topic):
        connection.receive_control(packet)
        return
    properties = packet.properties
    properties.pop("subscription_identifier", None)
    message = Message(packet.topic, packet.payload, packet.qos, packet.retain, properties)
    if connection.carries_ids:
        identify_from(message)
    message.expire_from(broker.now)
    connection.receive_message(message, packet.topic.encode(), packet.packet_id)


def _handle_suback(connection: FarConnection, packet: Packet) -> None:
    assert isinstance(packet, Suback)
    wanted = connection.take_subscribing(packet.packet_id)
    answers = zip(wanted, packet.reason_codes, strict=False)
    refused = [each.topic_filter for each, code in answers if code >= FAILURE]
    connection.bridge.handle_subscribed(connection, wanted, refused)


def _handle_unsuback(connection: FarConnection, packet: Packet) -> None:
    """Nothing hangs on it."""


def _handle_pingresp(connection: FarConnection, packet: Packet) -> None:
    """That it came is all: `heard_at` is set for any packet."""


def _handle_disconnect(connection: FarConnection, packet: Packet) -> None:
    assert isinstance(packet, Disconnect)
    if connection.protocol_version < MQTT_5:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "DISCONNECT from a server", "§3.14")
    connection.end(f"the far broker disconnected: {_reason_of(packet)}")


def _reason_of(packet: Connack | Disconnect) -> str:
    """For the log and the bridge's state: a stranger's 64 KiB, with line ends, have no place there."""
    reason = packet.properties.get("reason_string", "")[:MAX_REASON]
    return "".join(each if each.isprintable() else "?" for each in reason) or describe(packet.reason_code)


_AS_FROM_SERVERS: dict[int, Any] = {
    CONNACK: (handle_connack, State.NEW),
    PUBLISH: (_handle_publish, State.CONNECTED),
    SUBACK: (_handle_suback, State.CONNECTED),
    UNSUBACK: (_handle_unsuback, State.CONNECTED),
    PINGRESP: (_handle_pingresp, State.CONNECTED),
    DISCONNECT: (_handle_disconnect, State.CONNECTED),
}
_AS_FROM_CLIENTS = (PUBACK, PUBREC, PUBREL, PUBCOMP)
FAR_HANDLERS = {each: HANDLERS[each] for each in _AS_FROM_CLIENTS} | _AS_FROM_SERVERS

# What needs the codec comes the long way; acknowledgements are the same in all.
OTHER_SHORT_PATH: dict[int, Any] = {
    first: short for first, short in SHORT_PATH.items() if first >> 4 != PUBLISH
}


def publish_born(connection: FarConnection, data: bytes, position: int, body: int, stop: int) -> int:
    """PUBLISH at QoS 0 from a broker that gives no ids, while this is the only bridge there."""
    foreign = connection.foreign
    if foreign is None or not foreign.is_simple:
        return 0
    found = publish_identified(connection, data, position, body, stop)
    if found or stop - body < 3:
        return found
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    if topic_end >= stop or data[topic_end]:
        return 0
    route = connection.route_for(data[body + 2 : topic_end])
    if route is None:
        return 0
    message_id = foreign.stamps.next_id(connection.broker.now)
    if message_id is None:
        return 0
    connection.broker.stats.packets_received += 1
    accept(connection, Message(route.topic, data[topic_end + 1 : stop], id=message_id), route, 0)
    return stop


FOREIGN_SHORT_PATH = OTHER_SHORT_PATH | {0x30: publish_born}
