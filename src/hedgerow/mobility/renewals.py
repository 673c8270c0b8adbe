"""Moving a client to another broker, by the means that it knows.

A client of the extension (`mqtt/extension.py`) is told by a CONNACK of codes 6 to 8 and served until it has
left: it connects there before it leaves here. A client of MQTT 5 is told by DISCONNECT with a Server
Reference, which ends the connection at once. So it first gets no new publications at QoS 1 and 2 (they wait
in its session), and what is in flight either way is finished, within `MAX_LEAVING_S`: neither side then has
to wonder whether the other got it. One that does not finish stays after all, if it is only for a time that it
was to go. Other clients cannot be told; they stay, and this broker is their gateway.

Whoever decides that a client is to move also sees to its subscriptions and to what waits for it here.
"""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.broker.connection import Connection
from hedgerow.broker.deliveries import pump
from hedgerow.broker.session import Channel
from hedgerow.mqtt.extension import Renewal, parse_address
from hedgerow.mqtt.outbox import Outbox
from hedgerow.mqtt.packets import MQTT_5, MQTT_EXTENDED, Renew
from hedgerow.mqtt.reasons import Reason

MAX_LEAVING_S = 2.0  # so long nothing new is sent to a client that does not acknowledge
CHECK_S = 0.05  # What waits for a commit is not noticed by the client's next packet, but soon.

# Use Another Server is for a time, Server Moved for good (§4.11).
_REASONS = {
    Renewal.ACTIVE_TOPICS: Reason.USE_ANOTHER_SERVER,
    Renewal.RENEW_TOPICS: Reason.SERVER_MOVED,
}


class Move:
    """What a client's connection has to do with other brokers."""

    def __init__(self, connection: Connection) -> None:
        self.supporter = ""
        """The broker that the client was told of by the last Connection Renew."""
        self.is_name_unverified = False
        """The client gave a user name, and this broker let it in without asking for more."""
        self._connection = connection
        self._reason_code = 0
        self._address = ""
        self._until: float | None = None  # None: it is not leaving
        self._window = 0  # of its outbox before

    @property
    def is_leaving(self) -> bool:
        return self._until is not None

    def leave(self, reason_code: int, address: str) -> None:
        """Tell a client of MQTT 5 to go when nothing is in flight."""
        connection = self._connection
        broker, session = connection.broker, connection.connected_session()
        outbox = session.outbox = session.outbox or Outbox(broker.limits.in_flight)
        self._reason_code, self._address = reason_code, address
        self._until, self._window = broker.now + MAX_LEAVING_S, outbox.window
        outbox.window = 0
        self._check()

    def input_handled(self) -> None:
        self._check()

    def check_time(self) -> None:
        if self.is_leaving:
            self._check()
        else:
            self._connection.check_keep_alive()

    def _check(self) -> None:
        """Let the client go, if nothing is in flight or it has taken too long."""
        connection, broker = self._connection, self._connection.broker
        if self._until is None or not connection.is_connected:
            return
        is_busy = _is_busy(connection)
        if is_busy and broker.now < self._until:
            broker.arm(min(self._until, broker.now + CHECK_S), connection)
        elif is_busy and self._reason_code == Reason.USE_ANOTHER_SERVER:
            self._stay()
        else:
            session = connection.connected_session()
            session.will = None  # The other broker has it: the client lives.
            broker.owners.weigh(session)
            connection.disconnect(self._reason_code, "", self._address)

    def _stay(self) -> None:
        connection = self._connection
        self._until = None
        outbox = connection.connected_session().outbox
        assert outbox is not None
        outbox.window = self._window
        pump(connection.broker, connection)
        connection.check_time()  # The timer was for this; its keep alive is due some time, too.


def move_of(connection: Connection) -> Move:
    move = connection.attachment
    if not isinstance(move, Move):
        move = connection.attachment = Move(connection)
    return move


def is_leaving(connection: Channel) -> bool:
    """Has the client been told to go, and is still here?"""
    move = connection.attachment if isinstance(connection, Connection) else None
    return isinstance(move, Move) and move.is_leaving


def is_name_unverified(connection: Channel) -> bool:
    """Did the client give a user name that nobody verified? It stays where it is."""
    move = connection.attachment if isinstance(connection, Connection) else None
    return isinstance(move, Move) and move.is_name_unverified


def renew(connection: Channel, code: int, address: str, topics: Sequence[str] = ()) -> bool:
    """Tell the client to renew its connection at another broker; False where it cannot be told."""
    assert isinstance(connection, Connection)
    move = move_of(connection)
    if address:
        parse_address(address)
    elif code != Renewal.ACTIVE_TOPICS or not move.supporter:
        raise ValueError(f"code {code} needs an address")
    if not connection.is_connected or move.is_leaving or move.is_name_unverified:
        return False
    if connection.protocol_version == MQTT_EXTENDED:
        if code == Renewal.CONNECTION:
            move.supporter = address
        connection.send_packet(Renew(code, address, list(topics)))
        return True
    if connection.protocol_version < MQTT_5 or connection.carries_ids:
        return False
    if code == Renewal.CONNECTION:
        move.supporter = address
        return False
    move.leave(_REASONS[Renewal(code)], address or move.supporter)
    return True


def _is_busy(connection: Connection) -> bool:
    session = connection.connected_session()
    in_flight = session.outbox is not None and session.outbox.in_flight
    return bool(in_flight or session.received or connection.held_acknowledgements)
