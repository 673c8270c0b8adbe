"""The connection of a mobile broker at this one: who may have it, and its publications on the short path."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hedgerow.broker.ids import RIGHT_TOPIC
from hedgerow.broker.mobility import MOBILE_PREFIX, address_of
from hedgerow.broker.short_path import PUBLISH_AT_MOST_ONCE, acknowledgements
from hedgerow.errors import TopicError
from hedgerow.mqtt.extension import parse_address
from hedgerow.mqtt.ids import node_of
from hedgerow.topics import validate_name

if TYPE_CHECKING:
    from hedgerow.broker.broker import Broker
    from hedgerow.broker.connection import Connection
    from hedgerow.mqtt.packets import Connect

PUBLICATION_WORK = 5  # beside what comes of it


def mobile_refusal(broker: Broker, packet: Connect, is_peer: bool, username: str | None) -> str | None:
    """A session of this name is that of a mobile broker, and of the one that it names."""
    broker_id = packet.client_id.removeprefix(MOBILE_PREFIX)
    if broker.mobility is None:
        return "this broker supports no mobile brokers"
    if node_of(packet.properties) is None:
        return f"client ids that begin with {MOBILE_PREFIX} are those of mobile brokers"
    if not is_peer:
        return f"no mobile broker without the right to write {RIGHT_TOPIC}"
    if node_of(packet.properties) != broker_id or not _is_address(address_of(packet.properties)):
        return "not as a mobile broker connects"
    return broker.mobility.refusal(broker_id, username)


def _is_address(text: str) -> bool:
    """Clients are sent there."""
    try:
        return not text or bool(parse_address(text))
    except ValueError:
        return False


def receive_at_most_once(connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
    """PUBLISH at QoS 0 without RETAIN and properties."""
    if stop - body < 3:
        return 0
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    if topic_end + 1 > stop or data[topic_end]:
        return 0
    try:
        topic = validate_name(data[body + 2 : topic_end].decode())
    except (UnicodeDecodeError, TopicError):
        return 0
    broker = connection.broker
    if broker.mobility is None:
        return 0
    broker.work += PUBLICATION_WORK
    stats = broker.stats
    stats.packets_received += 1
    stats.publish_received += 1
    stats.publish_bytes_received += stop - position
    broker.mobility.receive(connection, topic, data[topic_end + 1 : stop])
    # A link that was ended by what it said has nothing more to say.
    return stop if connection.is_connected else len(data)


MOBILE_SHORT_PATH: dict[int, Callable[[Connection, bytes, int, int, int], int]] = {
    PUBLISH_AT_MOST_ONCE: receive_at_most_once,
    0x40: acknowledgements,
    0x50: acknowledgements,
    0x62: acknowledgements,
    0x70: acknowledgements,
}
