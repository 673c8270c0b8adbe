"""Moving a client to another broker, by the means that it knows.

A client of the extension (`mqtt/extension.py`) is told by a CONNACK of codes 6 to 8 and served until it has
left: it connects there before it leaves here. A client of MQTT 5 is told by DISCONNECT with a Server
Reference, which ends the connection at once. So it first gets no new publications at QoS 1 and 2 (they wait
in its session), and what is in flight either way is finished, within `MAX_LEAVING_S`: neither side then has
to wonder whether the other got it. One that does not finish stays after all, if it is only for a time that it
was to go. Other clients cannot be told; they stay, and this broker is their gateway.

Who decides that a client is to move also sees to its subscriptions and to what waits for it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hedgerow.broker.deliveries import pump
from hedgerow.mqtt.extension import Renewal, parse_address
from hedgerow.mqtt.outbox import Outbox
from hedgerow.mqtt.packets import MQTT_5, MQTT_RENEWALS, Renew
from hedgerow.mqtt.reasons import Reason

if TYPE_CHECKING:
    from hedgerow.broker.connection import Connection

MAX_LEAVING_S = 2.0  # so long nothing new is sent to a client that does not acknowledge
CHECK_S = 0.05  # What waits for a commit is not noticed by the client's next packet, but soon.

# Use Another Server is for a time, Server Moved for good (§4.11).
_REASONS = {
    Renewal.ACTIVE_TOPICS: Reason.USE_ANOTHER_SERVER,
    Renewal.RENEW_TOPICS: Reason.SERVER_MOVED,
}


@dataclass(slots=True)
class Leaving:
    """A client of MQTT 5 that is told to go when nothing is in flight."""

    reason_code: int
    address: str
    until: float
    window: int
    """Of its outbox before."""


def renew(connection: Connection, code: int, address: str, topics: Sequence[str]) -> bool:
    if address:
        parse_address(address)
    elif code != Renewal.ACTIVE_TOPICS or not connection.supporter:
        raise ValueError(f"code {code} needs an address")
    if not connection.is_connected or connection.leaving is not None:
        return False
    if connection.protocol_version == MQTT_RENEWALS:
        if code == Renewal.CONNECTION:
            connection.supporter = address
        connection.send_packet(Renew(code, address, list(topics)))
        return True
    if connection.protocol_version < MQTT_5 or connection.carries_ids:
        return False
    if code == Renewal.CONNECTION:
        connection.supporter = address
        return False
    _begin_leaving(connection, _REASONS[Renewal(code)], address or connection.supporter)
    return True


def _begin_leaving(connection: Connection, reason_code: int, address: str) -> None:
    broker, session = connection.broker, connection.connected_session()
    outbox = session.outbox = session.outbox or Outbox(broker.limits.in_flight)
    connection.leaving = Leaving(reason_code, address, broker.now + MAX_LEAVING_S, outbox.window)
    outbox.window = 0
    check_leaving(connection)


def check_leaving(connection: Connection) -> None:
    """Let the client go, if nothing is in flight or it has taken too long."""
    leaving, broker = connection.leaving, connection.broker
    if leaving is None or not connection.is_connected:
        return
    is_busy = _is_busy(connection)
    if is_busy and broker.now < leaving.until:
        broker.arm(min(leaving.until, broker.now + CHECK_S), connection)
    elif is_busy and leaving.reason_code == Reason.USE_ANOTHER_SERVER:
        _stay(connection, leaving)
    else:
        connection.connected_session().will = None  # The other broker has it: the client lives.
        connection.disconnect(leaving.reason_code, "", leaving.address)


def _stay(connection: Connection, leaving: Leaving) -> None:
    connection.leaving = None
    outbox = connection.connected_session().outbox
    assert outbox is not None
    outbox.window = leaving.window
    pump(connection)
    connection.check_time()  # The timer was for this; its keep alive is due some time, too.


def _is_busy(connection: Connection) -> bool:
    session = connection.connected_session()
    in_flight = session.outbox is not None and session.outbox.in_flight
    return bool(in_flight or session.received or connection.held_acknowledgements)
