"""A bridge's dealings with a foreign broker, which gives no ids and knows none.

What begins there gets one id, whichever bridges carry it away (`stamps.py`); what is brought there is brought
once, whichever bridges have it (`admission.py`). Both are settled by publications under `hedgerow/bridge/` at
that broker. A bridge that is the only one there pays next to nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from hedgerow.bridges.admission import Admission
from hedgerow.bridges.attendance import IDENTITY_TOPIC
from hedgerow.bridges.fabric_key import Envelopes, FabricKey
from hedgerow.bridges.stamps import Stamps
from hedgerow.broker.dialled import DialledConnection
from hedgerow.broker.handle_publish import accept, handle_puback, handle_pubcomp
from hedgerow.broker.ids import is_duplicate
from hedgerow.broker.publishing import publish_message
from hedgerow.broker.routes import Route
from hedgerow.message import Message, MessageId

HELD = b""  # what leaves now of a packet that is held, or of one at QoS 0 that the foreign broker has
MAX_HELD_BYTES = 4 * 1024 * 1024  # of QoS 0 that waits to be admitted


class _Held(NamedTuple):
    """A packet that waits until it is known whether the foreign broker needs it."""

    message: Message
    topic: str
    data: bytes
    qos: int
    packet_id: int


class ForeignLink(DialledConnection):
    """The connection to a broker that may be a foreign one."""

    __slots__ = ("foreign",)

    foreign: Foreign | None
    """Where the far broker gives no ids."""

    def note_change(self) -> None:
        """There is something to do, at another time than before perhaps."""
        raise NotImplementedError

    def send_later(self, data: bytes, qos: int) -> None:
        """A packet that was held, whose delivery is in flight since it was encoded."""
        if qos == 2 and self.session is not None:
            self.broker.durability.send_exactly_once(self, self.session, data)
        else:
            self.send(data)


class Foreign:
    """Outlives the connections of its bridge. `connection` is the one that is open."""

    def __init__(
        self,
        admission: Admission,
        life: int,
        carries_ids: bool,
        identity: str,
        filters: Iterable[str],
        key: FabricKey,
    ) -> None:
        self.stamps = Stamps(admission.carrier_id, life, carries_ids, identity, filters)
        self.admission = admission
        self.envelopes = Envelopes(key, life)
        self.forged_ids = 0  # of messages whose id nobody proved
        self.connection: ForeignLink | None = None
        self._held: dict[MessageId, _Held] = {}
        self._held_bytes = 0
        self._is_serving = False
        self._is_due = False

    @property
    def is_simple(self) -> bool:
        """May a run of packets be sent as it is?"""
        return self.admission.is_alone and not self.stamps.wants_sent

    # The connection

    def connected(self, connection: ForeignLink) -> None:
        self.connection = connection
        self.stamps.connected(connection.broker.now)

    def disconnected(self, keeps_session: bool) -> None:
        connection, self.connection = self.connection, None
        self.stamps.disconnected()
        self.admission.disconnected()
        self._held.clear()
        self._held_bytes = 0
        self._is_due = False
        for message, context in self.stamps.take_identified():
            # Not acknowledged: the foreign broker sends it again, unless it forgets us. Then it is passed on
            # now, since on the next connection its packet identifier is that of another message.
            if connection is not None and not keeps_session:
                self._pass_on_unanswered(connection, message, *cast(tuple[Route, int], context))

    def claim(self, filters: Sequence[str], now: float) -> None:
        """Tell the other carriers at once which filters are ours from here on."""
        self.stamps.attendance.set_filters(filters, now)
        if self.connection is not None and self.connection.is_connected:
            self._publish(self.connection)

    @property
    def deadline(self) -> float:
        return float("-inf") if self._is_due else min(self.stamps.deadline, self.admission.deadline)

    def handle_timer(self, now: float) -> None:
        if self.stamps.deadline <= now:
            self.stamps.handle_timer(now)
        if self.admission.deadline <= now:
            self.admission.handle_timer(now)
        self.serve()

    # Out

    def send(self, message: Message, topic: str, data: bytes, qos: int, packet_id: int) -> bytes:
        """What of a packet for the foreign broker leaves now: all, or `HELD`."""
        connection = self.connection
        assert connection is not None
        now = connection.broker.now
        message_id = connection.broker.identify_late(message)
        may = self.admission.enter(message_id, now)
        if may and self.is_simple:
            return data  # There is nobody to tell. In a profile `serve` was 47 % of what delivering it took.
        held = _Held(message, topic, data, qos, packet_id)
        if may:
            self._note_sent(held, now)
            self.serve()
            return data
        if not qos and (may is False or self._held_bytes + len(data) > MAX_HELD_BYTES):
            return HELD
        self._held[message_id] = held
        self._held_bytes += len(data)
        if may is False:
            # Not at once: whoever puts it in flight is not done with it.
            self.admission.refuse(message_id)
        self._is_due = True
        connection.note_change()
        return HELD

    def enter_run(self, messages: Sequence[Message]) -> bool:
        """May these leave at QoS 1, as a run of one life? False: `send` each."""
        if not self.is_simple or self.connection is None:
            return False
        ids = [message.id for message in messages if message.id is not None]
        return len(ids) == len(messages) and self.admission.enter_run(ids, self.connection.broker.now)

    def note_run(self, origin: str, epoch: int, sequences: Sequence[int]) -> None:
        """Messages that were sent as a run: whoever comes now and has them too is told so."""
        self.admission.note_run(origin, epoch, sequences)

    def _note_sent(self, held: _Held, now: float) -> None:
        if self.stamps.wants_sent:
            self.stamps.note_sent(Message(held.topic, held.message.payload, id=held.message.id), now)

    def _release(self, connection: ForeignLink) -> None:
        for message_id, may in self.admission.take_answers():
            held = self._held.pop(message_id, None)
            if held is None:
                continue
            self._held_bytes -= len(held.data)
            if may:
                self._note_sent(held, connection.broker.now)
                self._publish(connection)
                connection.send_later(held.data, held.qos)
            elif held.qos == 1:
                handle_puback(connection, held.packet_id, 0)
            elif held.qos == 2:
                handle_pubcomp(connection, held.packet_id, 0)

    # In

    def receive_message(
        self, message: Message, route: Route, packet_id: int, may_be_told: bool = True
    ) -> None:
        """One that came from the foreign broker, under its name there."""
        connection = self.connection
        assert connection is not None
        if message.id is None:
            self.stamps.receive_message(message, (route, packet_id), connection.broker.now, may_be_told)
        else:
            self._pass_on(connection, message, route, packet_id)
        self.serve()

    def receive_control(self, topic: str, payload: bytes) -> None:
        connection = self.connection
        assert connection is not None
        now = connection.broker.now
        said = self.envelopes.unwrap(topic, payload, now, is_retained=topic == IDENTITY_TOPIC)
        if said is not None and not self.admission.receive(topic, said, now):
            self.stamps.receive_control(topic, said, now)
        self.serve()

    def _pass_on(self, connection: ForeignLink, message: Message, route: Route, packet_id: int) -> None:
        message.topic = route.topic
        if route.stale:
            route = connection.broker.find_route(message.topic)
        accept(connection, message, route, packet_id)

    def _pass_on_unanswered(
        self, connection: ForeignLink, message: Message, route: Route, packet_id: int
    ) -> None:
        broker, inbound = connection.broker, connection.inbound
        assert inbound is not None
        assert message.id is not None
        inbound.published += 1
        message.topic = route.topic
        if is_duplicate(broker, message.id):
            inbound.duplicates += 1
        else:
            publish_message(broker, message, broker.find_route(message.topic), connection.session)

    # What is due

    def serve(self) -> None:
        """Pass on what has its id now, send what was admitted, publish what the other bridges are to know."""
        connection = self.connection
        if connection is None or not connection.is_connected or self._is_serving:
            return
        self._is_due = False
        self._is_serving = True  # Passing on makes this broker send, here too.
        connection.note_change()  # of the next deadline
        stamps, attendance = self.stamps, self.stamps.attendance
        connection.connected_session().far_origin = attendance.identity
        self.admission.set_leader(attendance.first_carrier, attendance.is_alone, connection.broker.now)
        self._publish(connection)
        for message, context in stamps.take_identified():
            assert message.id is not None
            self.admission.note_heard(message.id)
            self._pass_on(connection, message, *cast(tuple[Route, int], context))
        self._release(connection)
        self._publish(connection)
        self._is_serving = False

    def _publish(self, connection: ForeignLink) -> None:
        for message in (*self.stamps.take_publications(), *self.admission.take_publications()):
            self.tell(connection, message)

    def tell(self, connection: ForeignLink, message: Message) -> None:
        """Publish what the other carriers are to believe."""
        payload = self.envelopes.wrap(message.topic, message.payload, connection.broker.now)
        connection.publish_there(Message(message.topic, payload, retain=message.retain))
