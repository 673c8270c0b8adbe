"""What a far end closes on, so that a link never dies for good of one message, and no message of that.

What this side knows that a peer cannot carry (too large, no name there) is *set aside* before it is sent:
counted, logged, and complete for that peer; what is behind it goes on. A peer that answers PUBACK or PUBREC
with an error has set it aside itself: nodes answer each other so (`Connection._pass_over`).

The rest is for what nobody foresees. The far end closes whenever it is sent a certain message, which would be
sent again first thing after every reconnect, with the queue behind it waiting for ever:

1. An end of a connection is *blamed* on what was in flight if the far end says so, by a DISCONNECT of MQTT 5
   with one of `BLAMING`. Before MQTT 5 there are no words for it: there, closing or resetting is enough. A
   foreign broker may close without a word in MQTT 5 too (Mosquitto does, on strings with control characters,
   and a reset may overtake its word), which is half as much evidence. A cut, a record that does not open and
   a time-out are none, nor is a close by a node of ours, which has words: anybody on the way can bring those
   about.
2. The next connection is *careful*: for `CAREFUL_S` one message is in flight at a time, so that the first in
   flight is the one that the far end closes on. It is wanted soon (`is_hurried`): the far end is there, and
   what is behind waits.
3. A message that is the first in flight at two such ends, or four without a word, or one where another of its
   topic is parked, is *parked*: logged and counted, kept in the session and the store, and not sent with the
   others. After `RETRY_S` it is tried again, when nothing else waits; after each try that ends with the
   connection, twice as long later than before. So a link dies of what is parked at most once in that time,
   and all else goes on.

A verdict may be wrong, since what left at QoS 0 may be the cause, and may be brought about by whoever breaks
into a link in clear. Then a message comes late, and is not lost. The rule is for the sessions of links and of
peers that give ids, whoever dialled. It is kept in memory: after a restart it begins anew.
"""

from __future__ import annotations

from collections import deque

from hedgerow.broker.core import BrokerCore
from hedgerow.broker.deliveries import drop_expired, drop_parked, is_tracked, note_set_aside, pump, transmit
from hedgerow.broker.session import Channel, Session, Suspicion
from hedgerow.mqtt.outbox import MAX_PACKET_ID, Delivery, Outbox, Stage
from hedgerow.mqtt.packets import MQTT_5
from hedgerow.mqtt.reasons import Reason, describe

CAREFUL_S = 5.0  # A far end that does not answer holds up the others no longer.
RETRY_S = 60.0
MAX_RETRY_S = 3_600.0
LOOK_S = 1.0
MAX_PARKED = 256  # Of one session. Whoever may publish decides how many messages a far end closes on.
ENOUGH = 4  # evidence against a message

# What a far end closes on comes in numbers, where somebody publishes it: a back-off for each is long silence.
HURRY_S = 0.1
# In a row, while the far end takes nothing: it may be ill, and what it closes on be anything.
MAX_HURRIED = 128
HURRIED_AGAIN_S = 10.0  # for each of them

BLAMING = frozenset(
    {
        Reason.UNSPECIFIED_ERROR,
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
"""By which a peer may mean what it was sent, rather than itself, the connection or its administrator."""


def blame(reason_code: int) -> int | None:
    """What a DISCONNECT says of what was sent; None for nothing."""
    return reason_code if reason_code in BLAMING else None


def note_end(broker: BrokerCore, session: Session, connection: Channel) -> None:
    """A connection of the session is over: is something that was in flight to blame?"""
    outbox, suspicion, reason = session.outbox, session.suspicion, connection.far_reason
    if outbox is None or not outbox.in_flight or not is_tracked(session):
        return
    if suspicion is not None and suspicion.tried is not None:
        tried, suspicion.tried = suspicion.tried, None
        if _is_unanswered(outbox, tried):  # Whatever ended it, what was tried does not go first again.
            suspicion.retry_s = min(2 * suspicion.retry_s, MAX_RETRY_S)
            suspicion.is_blamed = reason is not None
            _park(broker, session, suspicion, tried)
            return
    if reason is None:
        return
    parked = suspicion.parked if suspicion is not None else {}
    unsent = {*(connection.resending or ()), *parked}
    first = next(
        (each for each in outbox.in_flight.values() if each.stage == Stage.SENT and each not in unsent), None
    )
    if first is None:
        return
    if suspicion is None:
        suspicion = session.suspicion = Suspicion(RETRY_S)
    suspicion.is_careful = suspicion.is_blamed = True
    # Retained, it may be another delivery of the same message: of a queue that was dropped, the next one.
    if suspicion.first is None or suspicion.first.message is not first.message:
        is_alike = any(each.message.topic == first.message.topic for each in parked)
        suspicion.evidence = ENOUGH // 2 if is_alike else 0
    suspicion.first = first
    suspicion.evidence += ENOUGH // 2 if reason or connection.protocol_version < MQTT_5 else ENOUGH // 4
    if suspicion.evidence < ENOUGH:
        return
    what = f"disconnects: {describe(reason)}" if reason else "closes when it comes"
    why = f"the far end {what}; it is kept, and tried again in {suspicion.retry_s:g} s"
    note_set_aside(broker, session, first.message.topic, why)
    _park(broker, session, suspicion, first)


def _is_unanswered(outbox: Outbox, delivery: Delivery) -> bool:
    return outbox.in_flight.get(delivery.packet_id) is delivery and delivery.stage == Stage.SENT


def _park(broker: BrokerCore, session: Session, suspicion: Suspicion, delivery: Delivery) -> None:
    suspicion.first = None
    if len(suspicion.parked) >= MAX_PARKED:
        drop_parked(broker, session)
    message_id = broker.identify_late(delivery.message)
    suspicion.parked[delivery] = message_id
    suspicion.retry_at = broker.now + suspicion.retry_s
    suspicion.shunned.pop(message_id, None)
    if len(suspicion.shunned) >= MAX_PARKED:
        del suspicion.shunned[next(iter(suspicion.shunned))]
    suspicion.shunned[message_id] = suspicion.retry_at


def is_hurried(broker: BrokerCore, session: Session) -> bool:
    """A link has just ended: is the next one wanted at once, to find what the far end closes on?"""
    suspicion, ledger = session.suspicion, session.ledger
    if suspicion is None or not suspicion.is_blamed:
        return False
    suspicion.is_blamed = False
    made_up = (broker.now - suspicion.hurried_at) / HURRIED_AGAIN_S
    suspicion.hurried = max(0.0, suspicion.hurried - made_up)
    suspicion.hurried_at = broker.now
    if ledger is not None and ledger.relayed != suspicion.relayed:
        suspicion.relayed, suspicion.hurried = ledger.relayed, 0.0  # It answered well in between.
    suspicion.hurried += 1
    return suspicion.hurried <= MAX_HURRIED


def begin(broker: BrokerCore, connection: Channel, suspicion: Suspicion) -> None:
    """A session goes on. `resending` has what was in flight; what is parked takes no part of the window."""
    session = connection.connected_session()
    outbox = session.outbox
    assert outbox is not None
    suspicion.shunned = {each: until for each, until in suspicion.shunned.items() if until > broker.now}
    suspicion.parked = {
        each: message_id for each, message_id in suspicion.parked.items() if _is_unanswered(outbox, each)
    }
    parked = suspicion.parked
    connection.resending = deque(each for each in connection.resending or () if each not in parked)
    suspicion.window = min(outbox.window, MAX_PACKET_ID - len(parked))
    suspicion.careful_until = broker.now + CAREFUL_S
    outbox.window = (1 if suspicion.is_careful else suspicion.window) + len(parked)
    broker.arm(broker.now + (CAREFUL_S if suspicion.is_careful else LOOK_S), session)


def check_time(broker: BrokerCore, session: Session) -> None:
    """The time that was set for a session with a connection: care is over, or what is parked is tried."""
    suspicion, connection, outbox = session.suspicion, session.connection, session.outbox
    if suspicion is None or connection is None or outbox is None or not connection.is_connected:
        return
    if suspicion.is_careful:
        if broker.now < suspicion.careful_until:
            broker.arm(suspicion.careful_until, session)
            return
        suspicion.is_careful = False
        outbox.window += suspicion.window - 1
        pump(broker, connection)
    if suspicion.tried is not None and not _is_unanswered(outbox, suspicion.tried):
        suspicion.tried, suspicion.retry_s = None, RETRY_S  # It was taken.
    if suspicion.tried is None:
        _try_next(broker, connection, session, outbox, suspicion)
    if suspicion.tried is not None:
        broker.arm(broker.now + LOOK_S, session)
    elif suspicion.parked:
        broker.arm(max(suspicion.retry_at, broker.now + LOOK_S), session)
    elif suspicion.first is None or not _is_unanswered(outbox, suspicion.first):
        _forget(broker, session, suspicion)


def _forget(broker: BrokerCore, session: Session, suspicion: Suspicion) -> None:
    if all(until <= broker.now for until in suspicion.shunned.values()):
        session.suspicion = None
    else:
        suspicion.first = None


def _try_next(
    broker: BrokerCore, connection: Channel, session: Session, outbox: Outbox, suspicion: Suspicion
) -> None:
    is_busy = connection.congested or connection.resending or session.has_queue
    while suspicion.parked and broker.now >= suspicion.retry_at and not is_busy:
        delivery = next(iter(suspicion.parked))
        del suspicion.parked[delivery]
        outbox.window -= 1  # It takes its part again.
        if _is_unanswered(outbox, delivery) and not drop_expired(broker, session, delivery):
            transmit(broker, connection, session, delivery, dup=True)
            if _is_unanswered(outbox, delivery):
                suspicion.tried = delivery
                return
