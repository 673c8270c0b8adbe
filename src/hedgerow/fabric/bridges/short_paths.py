"""The short paths of a bridge's connection: which packets need no codec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hedgerow.message import Message
from hedgerow.mqtt.broker.handle_publish import accept
from hedgerow.mqtt.broker.peers import publish_identified
from hedgerow.mqtt.broker.short_path import SHORT_PATH
from hedgerow.mqtt.packets import PUBLISH

if TYPE_CHECKING:
    from hedgerow.fabric.bridges.far_connection import FarConnection

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
