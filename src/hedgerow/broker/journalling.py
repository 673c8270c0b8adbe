"""The journal of a node, as its broker sees it: what is recorded, where it came from, and what waits for it.

Every publication to a topic that the journal wants is recorded once, where it enters the broker: with the id
under which the fabric knows it, before anybody gets it. What the broker drops as a duplicate is not recorded.
`Route.is_journalled` says whether a topic is wanted, so that a broker without a journal pays one test a run.

A publication at QoS 1 or 2 that was recorded counts as a change (`durability.py`): its acknowledgement is
held until the shell says that the journal has it on its disk. Where the journal has no room for it, the
connection is closed before the message is passed on, and whoever sent it sends it again. QoS 0, and what the
node itself publishes, is then passed on without being recorded.

`transport` is the scheme of the publisher's connection ("mqtt", "mqtts", "ws", "wss"), or else "bridge",
"neighbour", "sensors", "multicast", "mobile", "will" (of a client that is gone) or "node" (what the node
itself says). `client` is the client id; of bridges and neighbours the name of the node at the other end, if
it has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from hedgerow.broker.port import Port
from hedgerow.errors import ProtocolError
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.reasons import Reason

if TYPE_CHECKING:
    from hedgerow.broker.broker import Broker
    from hedgerow.broker.connection import Connection
    from hedgerow.broker.peers import IdentifiedRun
    from hedgerow.broker.routes import Route
    from hedgerow.broker.session import Session

# By the names of ports; what another one publishes is the node's own.
TRANSPORTS = {
    "sensors": "sensors",
    "multicast gateway": "multicast",
    "mobile brokers": "mobile",
    "the fixed broker": "mobile",
}
OF_THE_NODE = "node"
OF_THE_GONE = "will"
NO_ROOM = "the journal has no room until its disk takes more"

Source = tuple[str, str | None]
"""Transport and client."""


class Journal(Protocol):
    """What the shell keeps for the broker."""

    @property
    def is_behind(self) -> bool:
        """Is anything that was recorded not durable yet?"""

    def has_room(self, size: int) -> bool:
        """May payloads of so many bytes be recorded at QoS 1 or 2?"""

    def record(self, message: Message, source: Source, now: float) -> bool:
        """One message, which has its id. False: there is no room, and it is counted as missed."""

    def record_run(
        self,
        topic: str,
        payloads: Sequence[bytes],
        first_id: MessageId,
        qos: int,
        source: Source,
        now: float,
    ) -> bool:
        """Messages in a row, without properties and RETAIN; the sequences of their ids count up from that of
        the first. False: there is no room for them, and they are counted as missed."""

    def record_packets(
        self,
        topic: str,
        packets: bytes,
        size: int,
        head: int,
        first_id: MessageId,
        source: Source,
        now: float,
    ) -> bool:
        """As `record_run`, at QoS 0: packets of one size in a row, with so many bytes before each payload."""

    def figures(self) -> Mapping[str, int]:
        """What people see, by its name below `$SYS/broker/journal`."""


def source_of(publisher: Session | Port | None) -> Source:
    """By which way and from whom the publications of this one come."""
    if publisher is None:
        return OF_THE_NODE, None
    if isinstance(publisher, Port):
        return TRANSPORTS.get(publisher.name, OF_THE_NODE), None
    if publisher.is_bridge:
        return "bridge", publisher.far_origin
    if publisher.is_neighbour:
        return "neighbour", publisher.far_origin
    connection = publisher.connection
    return OF_THE_GONE if connection is None else connection.transport, publisher.client_id


def is_refused(connection: Connection, size: int) -> bool:
    """Before publications at QoS 1 or 2 are passed on, which the journal is to have: is there no room for
    payloads of so many bytes? Then the connection is at its end."""
    journal = connection.broker.journal
    if journal is None or journal.has_room(size):
        return False
    if connection.connected_session().is_bridge:
        # It may be a timer that passes on what a bridge received: nobody there waits for an error.
        connection.disconnect(Reason.SERVER_BUSY, NO_ROOM)
        return True
    raise ProtocolError(Reason.SERVER_BUSY, NO_ROOM)


def record(broker: Broker, message: Message, publisher: Session | Port | None) -> None:
    journal = broker.journal
    if journal is None:
        return
    broker.identify(message)
    if journal.record(message, source_of(publisher), broker.now) and message.qos:
        broker.durability.change_count += 1


def record_messages(broker: Broker, messages: Sequence[Message], publisher: Session) -> None:
    """Messages of one topic and origin at QoS 1, without properties and RETAIN; all have ids."""
    payloads = [message.payload for message in messages]
    sequences = [message.id.sequence for message in messages if message.id is not None]
    first_id = messages[0].id
    assert first_id is not None
    _record_rows(broker, messages[0].topic, payloads, first_id, sequences, 1, source_of(publisher))
    broker.durability.change_count += 1


def record_identified(connection: Connection, route: Route, run: IdentifiedRun) -> None:
    """Messages of another broker at QoS 0."""
    first_id = MessageId(run.origin, run.epoch, run.sequences[0])
    source = source_of(connection.session)
    _record_rows(connection.broker, route.topic, run.payloads, first_id, run.sequences, 0, source)


def record_packets(
    connection: Connection, route: Route, packets: bytes, size: int, head: int, sequence: int
) -> None:
    """Packets at QoS 0 that began here: `size` of each, `head` bytes before the payload; the first has this
    sequence."""
    broker = connection.broker
    journal = broker.journal
    if journal is not None:
        first_id = MessageId(broker.node_id, broker.epoch, sequence)
        source = source_of(connection.session)
        journal.record_packets(route.topic, packets, size, head, first_id, source, broker.now)


def _record_rows(
    broker: Broker,
    topic: str,
    payloads: Sequence[bytes],
    first_id: MessageId,
    sequences: Sequence[int],
    qos: int,
    source: Source,
) -> None:
    """In pieces where the sequences do not count up one by one: some were here before."""
    journal = broker.journal
    if journal is None:
        return
    count = len(payloads)
    begin = 0
    is_whole = list(sequences) == list(range(sequences[0], sequences[0] + count))
    while begin < count:
        end = count if is_whole else begin + 1
        first = sequences[begin]
        while end < count and sequences[end] == first + end - begin:
            end += 1
        journal.record_run(
            topic, payloads[begin:end], first_id._replace(sequence=first), qos, source, broker.now
        )
        begin = end
