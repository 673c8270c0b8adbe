"""What a peer cannot take, so that a link never dies for good of one message.

What this side knows that a peer cannot carry (too large, no name there) is *set aside* before it is sent:
counted, logged, and complete for that peer; what is behind it goes on. A peer that answers PUBACK or PUBREC
with an error has set it aside itself. Both end in `set_aside`.

The rest is for what nobody foresees. The far end closes whenever it is sent a certain message, and without
this rule it would be sent again first thing after every reconnect, with the queue behind it waiting for ever:

1. The far end says why (a DISCONNECT of MQTT 5 with one of `REFUSALS`) while messages were in flight, or it
   closed without a reason twice in a row while the same message was the first in flight. Then something in
   flight is *suspect*.
2. On the next connection what was in flight is *tried*: once the connection has stood for `SETTLE_S`, and
   nothing that clients publish has left for `QUIET_S` more, one message at a time; and nothing else leaves
   until it is acknowledged.
3. A message that was alone in flight when the far end said a second time that it refuses is set aside. If it
   never says why, as before MQTT 5, the message is set aside after `MAX_DEATHS` tries in a row, each ended by
   the far end within `MOMENT_S` with nothing else sent.

Ordinary failures discard nothing: a silent cut, a probe without an answer, a keep-alive that ran out, a
server that shuts down or is busy, and whatever ends a connection before a message is tried are no verdict,
and begin the count anew. The rule is for the sessions of links and of peers that give ids, whoever dialled.
"""

from __future__ import annotations

from hedgerow.broker.core import BrokerCore
from hedgerow.broker.deliveries import is_tracked, note_set_aside, transmit
from hedgerow.broker.session import Channel, OneByOne, Session, Suspicion
from hedgerow.mqtt.outbox import Delivery, Stage
from hedgerow.mqtt.packets import PINGREQ, PINGRESP, PUBLISH
from hedgerow.mqtt.reasons import Reason, describe

SETTLE_S = 1.0  # A connection that dies of something else does so before a message is tried.
QUIET_S = 1.0  # What was sent before at QoS 0 is refused within that time, and blamed on nothing else.
MOMENT_S = 1.0
MAX_DEATHS = 5
SUSPICIOUS_DEATHS = 2
MAX_REFUSED_IDS = 1_000  # Of one session. Whoever may publish decides how many a far end refuses.

REFUSALS = frozenset(
    {
        Reason.MALFORMED_PACKET,
        Reason.PROTOCOL_ERROR,
        Reason.IMPLEMENTATION_SPECIFIC_ERROR,
        Reason.NOT_AUTHORIZED,
        Reason.TOPIC_NAME_INVALID,
        Reason.PACKET_TOO_LARGE,
        Reason.QUOTA_EXCEEDED,
        Reason.PAYLOAD_FORMAT_INVALID,
        Reason.RETAIN_NOT_SUPPORTED,
        Reason.QOS_NOT_SUPPORTED,
    }
)
"""By which a peer blames what it was sent, rather than itself, the connection or its administrator."""


def blame(reason_code: int) -> int | None:
    """What a DISCONNECT says of what was sent: one of `REFUSALS`, 0 without a reason, None for nothing."""
    if reason_code == Reason.UNSPECIFIED_ERROR:
        return 0
    return reason_code if reason_code in REFUSALS else None


def set_aside(broker: BrokerCore, session: Session, delivery: Delivery, reason: str) -> None:
    """Give up a delivery in flight that the far end refuses: the queue goes on behind it."""
    outbox = session.outbox
    if outbox is None or outbox.in_flight.get(delivery.packet_id) is not delivery:
        return
    outbox.finish(delivery.packet_id)
    if session.ledger is not None:
        session.ledger.refused += 1
    # A retained value is sent on each connection, and must not end each.
    if session.refused_ids is None:
        session.refused_ids = {}
    elif len(session.refused_ids) >= MAX_REFUSED_IDS:
        del session.refused_ids[next(iter(session.refused_ids))]
    session.refused_ids[broker.identify_late(delivery.message)] = None
    note_set_aside(broker, session, delivery.message.topic, reason)
    broker.durability.finish_delivery(session, delivery)


class Trial:
    """What was in flight, one message at a time (rule 2). It has the connection until that is through."""

    def __init__(self, broker: BrokerCore, connection: Channel) -> None:
        self._broker = broker
        self._connection = connection
        self._ready_at = broker.now + SETTLE_S
        self.delivery: Delivery | None = None
        self.sent_at: float | None = None
        self.is_alone = False
        self.is_transport_congested = connection.congested
        self.is_holding = False
        self._held: list[bytes] = []

    @property
    def is_under_way(self) -> bool:
        connection, delivery = self._connection, self.delivery
        outbox = connection.session.outbox if connection.session is not None else None
        return (
            delivery is not None
            and outbox is not None
            and outbox.in_flight.get(delivery.packet_id) is delivery
            and delivery.stage == Stage.SENT
        )

    def input_handled(self) -> None:
        """The far end was heard: it may be the time to go on."""
        connection, now = self._connection, self._broker.now
        if now < self._ready_at or not connection.is_connected or self.is_under_way:
            return
        if not self.is_holding:
            self.is_holding = connection.congested = True  # As for a slow reader, within the same bounds.
            self._ready_at = now + QUIET_S
        else:
            self._try_next()

    def check_time(self) -> None:
        """Of a connection that was accepted; one that was dialled hears the answers to its probes."""
        connection = self._connection
        connection.check_keep_alive()
        self.input_handled()
        if connection.is_connected and self._broker.now < self._ready_at:
            due = min(self._ready_at, connection.timer_at or self._ready_at)
            self._broker.arm(due, connection)

    def _try_next(self) -> None:
        connection = self._connection
        session, broker = connection.connected_session(), self._broker
        outbox, resending = session.outbox, connection.resending
        self.delivery = self.sent_at = None
        while resending and outbox is not None:
            delivery = resending.popleft()
            if outbox.in_flight.get(delivery.packet_id) is not delivery or delivery.stage != Stage.SENT:
                continue
            self.delivery = delivery
            transmit(broker, connection, session, delivery, dup=True)
            if self.is_under_way:
                return
        self._finish(session)

    def _finish(self, session: Session) -> None:
        """All of it was taken: nothing is suspect any more."""
        connection = self._connection
        session.suspicion = None
        connection.trial = connection.attachment = None
        connection.out += self._held
        connection.set_congested(self.is_transport_congested, self._broker.now)

    def hold(self, data: bytes) -> None:
        """Clients' QoS 0: it leaves when all is through."""
        self._held.append(data)

    def take_output(self, out: list[bytes]) -> list[bytes]:
        """What may leave of the output: all until the message that is tried, then signs of life alone."""
        now = self._broker.now
        leaving: list[bytes] = []
        for chunk in out:
            if not chunk:
                continue
            is_tried = chunk[0] >> 4 == PUBLISH and bool(chunk[0] & 0x06)
            if self.sent_at is None and is_tried:
                self.sent_at = now
                self.is_alone = not [each for each in leaving if not _is_sign_of_life(each)]
            elif self.sent_at is not None and not _is_sign_of_life(chunk):
                self._held.append(chunk)
                continue
            leaving.append(chunk)
        out.clear()
        return leaving


def _is_sign_of_life(chunk: bytes) -> bool:
    return len(chunk) == 2 and chunk[0] >> 4 in (PINGREQ, PINGRESP)


def begin_trial(broker: BrokerCore, connection: Channel) -> None:
    """A session goes on: try what is suspect, if anything is. `resending` has it."""
    session = connection.session
    if session is None or session.suspicion is None or not session.suspicion.is_tried:
        return
    if not connection.resending:
        session.suspicion = None
        return
    connection.trial = connection.attachment = Trial(broker, connection)
    ready_at = broker.now + SETTLE_S
    broker.arm(min(ready_at, connection.timer_at or ready_at), connection)


# The end of a connection


def note_end(broker: BrokerCore, session: Session, connection: Channel) -> None:
    """A connection of the session is over: is something that was in flight to blame?"""
    outbox, suspicion = session.outbox, session.suspicion
    if outbox is None or not outbox.in_flight or not is_tracked(session):
        return
    session.suspicion = None
    reason = connection.far_reason
    if reason is None:
        return  # It was this end, or nobody.
    trial = connection.trial
    if trial is not None:
        if trial.is_under_way and trial.delivery is not None:
            _judge(broker, session, trial, suspicion, reason)
        return
    unsent = set(connection.resending or ())
    first = next(
        (each for each in outbox.in_flight.values() if each.stage == Stage.SENT and each not in unsent), None
    )
    if first is None:
        return
    if reason in REFUSALS:
        session.suspicion = Suspicion(first, 0, True)
    else:
        deaths = suspicion.deaths + 1 if suspicion is not None and suspicion.first is first else 1
        session.suspicion = Suspicion(first, deaths, deaths >= SUSPICIOUS_DEATHS)
        if session.suspicion.is_tried:
            session.suspicion.deaths = 0  # Those that count are of a message that was alone.


def _judge(
    broker: BrokerCore, session: Session, trial: OneByOne, suspicion: Suspicion | None, reason: int
) -> None:
    """Rule 3, for the message that was tried when the far end closed."""
    delivery = trial.delivery
    assert delivery is not None
    if trial.sent_at is None:
        return
    if reason in REFUSALS:
        set_aside(broker, session, delivery, f"the far end disconnects: {describe(reason)}")
        return
    if not trial.is_alone or broker.now > trial.sent_at + MOMENT_S:
        return
    deaths = suspicion.deaths + 1 if suspicion is not None and suspicion.first is delivery else 1
    if deaths >= MAX_DEATHS:
        set_aside(broker, session, delivery, f"the far end closed {deaths} times in a row when it came")
    else:
        session.suspicion = Suspicion(delivery, deaths, True)
