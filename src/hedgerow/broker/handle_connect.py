"""CONNECT, DISCONNECT and AUTH at the broker (MQTT 5 §3.1, §3.2, §3.14, §3.15).

A CONNECT is checked. If it names an authentication method, its sender proves itself (`exchange.py`). Then it
is logged in (at once when anonymous or by certificate, else when the shell has verified the password), and
`establish` binds the connection to its session.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Final

from hedgerow.broker import suspects
from hedgerow.broker.connection import CONNECTED, Connection, State
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.deliveries import pump
from hedgerow.broker.events import ClientConnected
from hedgerow.broker.exchange import Authentication, AuthenticationError
from hedgerow.broker.handle_publish import most_to_receive, release
from hedgerow.broker.ledger import Inbound
from hedgerow.broker.limits import Limits
from hedgerow.broker.owners import ADMINISTRATORS_CONNECTIONS, own_bytes, owner_of
from hedgerow.broker.role import Refusal, Role
from hedgerow.broker.session import FORM_OF_MQTT_3, FORM_OF_MQTT_5, Pause, Session, WireForm
from hedgerow.broker.session_end import check_time, discard
from hedgerow.broker.watching import set_role
from hedgerow.errors import ProtocolError, printable
from hedgerow.message import Properties
from hedgerow.mqtt import extension
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.ids import node_of
from hedgerow.mqtt.outbox import Outbox, Stage
from hedgerow.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    MQTT_EXTENDED,
    NEVER_EXPIRES,
    Connack,
    Connect,
    Disconnect,
    Packet,
)
from hedgerow.mqtt.reasons import Reason, describe

MAX_REASON = 200  # characters of what a peer says
SUCCESS: Final = Reason.SUCCESS  # by a name of the module, as the states are


@dataclass(slots=True)
class Login:
    """A user name and password for the shell to verify, away from the loop: hashing is slow."""

    connection: Connection
    username: str
    password: bytes
    connect: Connect


def handle_connect(connection: Connection, packet: Packet) -> None:
    assert isinstance(packet, Connect)
    connection.protocol_version = packet.protocol_version
    connection.maximum_packet_size = packet.properties.get("maximum_packet_size", 0)
    refusal = _refusal(connection, packet)
    if refusal is not None:
        connection.refuse_connect(*refusal, client_id=packet.client_id or None)
    elif packet.names_method:
        _begin_exchange(connection, packet)
    else:
        _log_in(connection, packet)


def _begin_exchange(connection: Connection, packet: Connect) -> None:
    """The peer proves itself before anything else is asked, by the method of its role."""
    role = _role_of(connection.broker, packet, None)
    authenticator = role.authenticator(packet)
    if isinstance(authenticator, Refusal):
        _refuse(connection, packet.client_id, authenticator)
        return
    connection.state = State.EXCHANGE
    connection.exchange = Authentication(authenticator, packet, partial(role.not_proven, packet))
    _go_on_exchange(connection, connection.exchange, packet.properties.get("authentication_data", b""))


def _go_on_exchange(connection: Connection, exchange: Authentication, data: bytes) -> None:
    connect = exchange.connect
    assert connect is not None
    try:
        answer = exchange.authenticator.step(data)
    except AuthenticationError as error:
        exchange.not_proven(str(error))
        connection.refuse_connect(Reason.NOT_AUTHORIZED, str(error), connect.client_id)
        return
    if exchange.proven_name is None:
        auth = exchange.write(answer)
        if connection.has_room_for(encode(auth, connect.protocol_version)):
            connection.send_packet(auth)
        else:
            connection.refuse_connect(Reason.PACKET_TOO_LARGE, "no room for the AUTH", connect.client_id)
        return
    connection.seal_with(exchange.authenticator.seal)
    connection.exchange = Authentication(exchange.authenticator)  # `connect` need not be kept
    _log_in(connection, connect)


def _log_in(connection: Connection, packet: Connect) -> None:
    if connection.certificate_name is not None:
        establish(connection, packet, connection.certificate_name)
    elif packet.username is not None and connection.broker.verifies_passwords:
        connection.state = State.LOGIN
        connection.pause(Pause.LOGIN)
        login = Login(connection, packet.username, packet.password or b"", packet)
        connection.broker.logins.append(login)
    elif connection.anonymous:
        # Without a password file a user name is a claim: no rights come of it.
        establish(connection, packet, None)
    else:
        connection.refuse_connect(Reason.NOT_AUTHORIZED, "anonymous access is not allowed", packet.client_id)


def _refusal(connection: Connection, packet: Connect) -> tuple[int, str] | None:
    if not packet.client_id:
        if not connection.broker.takes_empty_client_ids:
            return Reason.CLIENT_IDENTIFIER_NOT_VALID, "clients need a client identifier here"
        if packet.protocol_version == MQTT_3_1:
            return Reason.CLIENT_IDENTIFIER_NOT_VALID, "MQTT 3.1 needs a client identifier"
        if packet.protocol_version in (MQTT_3_1_1, MQTT_EXTENDED) and not packet.clean_start:
            return Reason.CLIENT_IDENTIFIER_NOT_VALID, "no client identifier for a session [MQTT-3.1.3-8]"
    claimed = connection.certificate_name or packet.username
    return _crowd_refusal(connection, packet, claimed)


def _crowd_refusal(connection: Connection, packet: Connect, username: str | None) -> tuple[int, str] | None:
    """Are too many connections open? Asked of who it claims to be, before its password costs any work, and
    again when that is proved."""
    broker = connection.broker
    limit = broker.limits.connections
    room = ADMINISTRATORS_CONNECTIONS if username in broker.administrators else 0
    if len(broker.connections) > limit + room:
        return Reason.SERVER_BUSY, f"{limit} connections are open"
    if room or not broker.owners.has_too_many_connections(connection):
        return None
    known = broker.sessions.get(packet.client_id)
    if known is not None and known.connection is not None and known.connection.owner == connection.owner:
        return None  # in the place of that one
    return Reason.SERVER_BUSY, "this user or address has as many connections as are free for all others"


def establish(connection: Connection, packet: Connect, username: str | None) -> None:
    """The client is who it says: give it its session, and the CONNACK."""
    broker = connection.broker
    client_id = packet.client_id
    role = _role_of(broker, packet, username)
    refusal = _role_refusal(connection, packet, username, role)
    if refusal is not None:
        _refuse(connection, client_id, refusal)
        return
    if username is not None:
        broker.owners.logged_in(connection, username)
    if username is not None or packet.username is not None:  # Else it is whom it was taken for before.
        crowd_refusal = _crowd_refusal(connection, packet, username)
        if crowd_refusal is not None:
            connection.refuse_connect(*crowd_refusal, client_id)
            return
    owner = connection.owner or owner_of(username, connection.address)
    full = _why_full(broker, packet, username, owner, role)
    if full is not None:
        reason = f"too many {full} are kept for this user or address, or in all"
        connection.refuse_connect(Reason.QUOTA_EXCEEDED, reason, client_id)
        return
    answer = _answer(broker, packet)
    if not client_id:
        client_id = broker.assign_client_id()
        if packet.protocol_version == MQTT_5:
            answer["assigned_client_identifier"] = client_id  # MQTT-3.2.2-16
    if connection.exchange is not None:
        answer["authentication_method"] = connection.exchange.authenticator.method  # MQTT-4.12.0-5
    role.answer(packet, answer)
    if connection.maximum_packet_size and not connection.has_room_for(
        encode(Connack(False, Reason.SUCCESS, answer), packet.protocol_version)
    ):
        connection.refuse_connect(Reason.PACKET_TOO_LARGE, "no room for the CONNACK", client_id)
        return
    session, session_present = _take_session(broker, packet, client_id, username, role)
    if session_present:
        broker.owners.came(session)
    else:
        broker.owners.add(session, owner)
    session_present = session_present or (not packet.clean_start and role.expects(packet, username))
    if role.gives_ids:
        carry_ids(connection)
    connection.short_path = role.short_path
    _negotiate(connection, session, packet, role)
    session.connection = connection
    connection.session = session
    connection.peer_name = node_of(packet.properties)
    session.far_origin = far_origin(connection)
    session.will = packet.will if role.keeps_will else None
    session.will_at = None
    session.timer_at = None
    broker.owners.weigh(session)
    attach(connection)
    if broker.on_established is not None:
        broker.on_established(connection)
    broker.durability.store_session(session)
    broker.events.append(
        ClientConnected(
            connection.address,
            client_id,
            username,
            packet.protocol_version,
            connection.transport,
            session_present,
        )
    )
    connection.send_packet(role.accept(connection, Connack(session_present, SUCCESS, answer)))
    role.connected(connection)
    if role.is_link:
        broker.durability.entrust(session, connection.is_proven or connection.exchange is not None)
    if not connection.is_connected:
        return
    if session_present:
        resume(connection)
    if broker.durability.has_ended(client_id):
        # If a crash brought the old session back, its received identifiers would swallow new messages.
        broker.durability.hold_back(connection, lambda: broker.now)
    role.resumed(connection, packet)
    if session_present:
        for source in broker.sources:
            source.connected(session)


def _role_of(broker: BrokerCore, packet: Connect, username: str | None) -> Role:
    """The role that a CONNECT asks for; that of a client if no other claims it."""
    client_id = packet.client_id
    for role in broker.claimants:
        if client_id.startswith(role.prefix) and role.claims(packet, username):
            return role
    return broker.client_role


def _role_refusal(
    connection: Connection, packet: Connect, username: str | None, role: Role
) -> Refusal | None:
    owner = connection.broker.sessions.get(packet.client_id)
    if owner is not None and owner.role.is_own:
        reason = f"the session of {packet.client_id!r} is that of {owner.role.description}"
        return Refusal(Reason.CLIENT_IDENTIFIER_NOT_VALID, reason)
    if packet.is_extended and not role.takes_callbacks:
        return Refusal(Reason.UNSUPPORTED_PROTOCOL_VERSION, "version 255 [MQTT-3.1.2-2]")
    return role.refusal(connection, packet, username, owner)


def _refuse(connection: Connection, client_id: str, refusal: Refusal) -> None:
    if refusal.is_expected:
        connection.send_packet(Connack(False, refusal.reason_code, refusal.properties or {}))
        connection.end(refusal.reason)
    else:
        connection.refuse_connect(refusal.reason_code, refusal.reason, client_id, refusal.properties)


def _why_full(
    broker: BrokerCore, packet: Connect, username: str | None, owner: str, role: Role
) -> str | None:
    """Of what this owner has too much for the session; None: there is room."""
    if not _has_place(broker, packet, username, owner):
        return "sessions"
    size = own_bytes(packet.client_id, username, packet.will if role.keeps_will else None)
    while True:
        known = broker.sessions.get(packet.client_id)
        before = known.own_bytes if known is not None and known.owner == owner else 0
        if broker.owners.session_bytes.has_room(owner, size - before):
            return None
        idle = broker.owners.oldest_idle(owner)
        if idle is None:
            return "bytes of wills and client identifiers"
        discard(broker, idle)


def _has_place(broker: BrokerCore, packet: Connect, username: str | None, owner: str) -> bool:
    """May this owner have the session? One that it left empty makes way for it, the oldest first."""
    known = broker.sessions.get(packet.client_id)
    if known is not None and not packet.clean_start and known.username == username:
        return True
    if known is not None and known.owner == owner:
        return True  # in the place of that one
    if broker.owners.may_open(owner, len(broker.sessions) - (known is not None)):
        return True
    idle = broker.owners.oldest_idle(owner)
    if idle is not None:
        discard(broker, idle)
    return idle is not None


def attach(connection: Connection) -> None:
    broker = connection.broker
    connection.state = CONNECTED
    connection.timer_at = None
    if connection.keep_alive_s:
        broker.arm(broker.now + connection.keep_alive_s * 1.5, connection)
    if connection.session is not None:
        broker.count_connection(connection.session, 1)


def resume(connection: Connection) -> None:
    """Send again what was in flight, in order (MQTT-4.4.0-1), then what waited."""
    session, broker = connection.session, connection.broker
    if session is None or not session.waiting_count:
        return
    if session.outbox is None:
        session.outbox = Outbox(broker.limits.in_flight)
    session.dropped = 0
    connection.resending = deque()
    for delivery in session.outbox.resend():
        if delivery.stage == Stage.RELEASED:
            # At once: only a PUBLISH waits for the Receive Maximum (MQTT-3.3.4-10).
            broker.durability.send_exactly_once(connection, session, release(delivery.packet_id))
        else:
            connection.resending.append(delivery)
    if session.suspicion is not None:
        suspects.begin(broker, connection, session.suspicion)
    pump(broker, connection)


def _take_session(
    broker: BrokerCore, packet: Connect, client_id: str, username: str | None, role: Role
) -> tuple[Session, bool]:
    session = broker.sessions.get(client_id)
    if session is not None and session.connection is not None:
        # MQTT-3.1.4-3. A will that waits for its delay dies with the take-over, unless the
        # session ends with it (§3.1.2.5).
        session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "")
        session = broker.sessions.get(client_id)
    if session is not None:
        check_time(broker, session)  # Its timer may be late: what the client publishes is behind its will.
        session = broker.sessions.get(client_id)
    if session is not None and session.username != username and role.inherits(session, username):
        session.username = username
    # A session that was made without a user is not handed to one who has a name.
    if session is not None and (packet.clean_start or session.username != username):
        discard(broker, session)
        session = None
    if session is not None:
        return session, True
    return broker.create_session(client_id, username, role), False


def _answer(broker: BrokerCore, packet: Connect) -> Properties:
    """What the client is told of our limits, and of what it asked for and does not get."""
    answer: Properties = {}
    limits = broker.limits
    if packet.protocol_version < MQTT_5:
        return answer
    if _session_expiry_s(packet) > limits.session_expiry_s:
        answer["session_expiry_interval"] = int(limits.session_expiry_s)
    if _keep_alive(packet, limits) != packet.keep_alive:
        answer["server_keep_alive"] = _keep_alive(packet, limits)  # MQTT-3.2.2-21
    if limits.receive_maximum < 65_535:
        answer["receive_maximum"] = limits.receive_maximum
    answer["maximum_packet_size"] = limits.packet_bytes
    if limits.topic_alias_maximum:
        answer["topic_alias_maximum"] = limits.topic_alias_maximum
    return answer


def _session_expiry_s(packet: Connect) -> float:
    if packet.protocol_version == MQTT_EXTENDED:
        return extension.SESSION_EXPIRY_S
    if packet.protocol_version < MQTT_5:
        return 0.0 if packet.clean_start else float("inf")
    interval = packet.properties.get("session_expiry_interval", 0)
    return float("inf") if interval == NEVER_EXPIRES else float(interval)


def _keep_alive(packet: Connect, limits: Limits) -> int:
    # Clients before MQTT 5 cannot be told of another, and send nothing for as long as they said.
    if packet.protocol_version < MQTT_5 or limits.keep_alive_s == 65_535:
        return packet.keep_alive
    return packet.keep_alive if 0 < packet.keep_alive <= limits.keep_alive_s else limits.keep_alive_s


def _negotiate(connection: Connection, session: Session, packet: Connect, role: Role) -> None:
    broker = connection.broker
    limits = broker.limits
    asked = packet.properties
    version = packet.protocol_version
    session.protocol_version = MQTT_3_1_1 if version == MQTT_EXTENDED else version
    set_role(broker, session, role)

    session.expiry_s = min(_session_expiry_s(packet), limits.session_expiry_s)
    session.expires_at = None
    # One that is stored stays so until it is discarded, even if that is now with the connection.
    session.durable = session.durable or (broker.durability.enabled and session.expiry_s > 0)
    connection.keep_alive_s = float(_keep_alive(packet, limits))
    # No more than one connection may leave: who comes again and again would have ever more of them.
    before = len(session.received or ())
    connection.received_before = min(before, most_to_receive(connection))
    connection.problem_information = asked.get("request_problem_information", 1) == 1
    if not connection.carries_ids:
        connection.aliases_out_maximum = min(asked.get("topic_alias_maximum", 0), limits.topic_alias_maximum)
    if connection.carries_ids:
        form = WireForm.PEER
    elif connection.aliases_out_maximum or connection.maximum_packet_size or version == MQTT_EXTENDED:
        form = WireForm.OWN
    else:
        form = FORM_OF_MQTT_5 if version == MQTT_5 else FORM_OF_MQTT_3
    set_wire_form(broker, session, form)

    in_flight = limits.peer_in_flight if connection.carries_ids else limits.in_flight
    window = min(asked.get("receive_maximum", 65_535), in_flight)
    if session.outbox is not None:
        session.outbox.window = window
    elif window != limits.in_flight:
        session.outbox = Outbox(window)


def set_wire_form(broker: BrokerCore, session: Session, form: WireForm) -> None:
    if form != session.wire_form:
        session.wire_form = form
        if session.subscriptions:
            broker.subscriptions.forget_all_routes()  # One by one, 10,000 filters would take 10 ms.


def carry_ids(connection: Connection) -> None:
    """Messages have their ids on this connection from now on."""
    connection.carries_ids = True
    connection.packet_bytes = connection.broker.limits.peer_packet_bytes
    connection.inbound = Inbound()


def far_origin(connection: Connection) -> str | None:
    """The origin of what begins at the peer, which is not sent back there."""
    name = connection.peer_name if connection.carries_ids else None
    return None if name is None else connection.connected_session().role.origin_of(connection, name)


def handle_disconnect(connection: Connection, packet: Packet) -> None:
    assert isinstance(packet, Disconnect)
    if connection.state is State.EXCHANGE:
        _leave_exchange(connection, packet)
        return
    session = connection.session
    keeps = session is not None and session.role.keeps(session)
    if session is not None and connection.protocol_version == MQTT_EXTENDED and not keeps:
        session.expiry_s = 0.0
    interval = packet.properties.get("session_expiry_interval")
    if session is not None and interval is not None:
        if session.expiry_s == 0 and interval != 0:
            raise ProtocolError(
                Reason.PROTOCOL_ERROR, "session expiry raised from 0 by DISCONNECT", "§3.14.2.2.2"
            )
        limit = connection.broker.limits.session_expiry_s
        if not keeps:
            session.expiry_s = min(float("inf") if interval == NEVER_EXPIRES else float(interval), limit)
    connection.far_reason = suspects.blame(packet.reason_code)
    # MQTT-3.14.4-3: a client that leaves for another reason than that it is done leaves its will.
    connection.closed_by_client(with_will=packet.reason_code != SUCCESS)


def handle_auth(connection: Connection, packet: Packet) -> None:
    exchange = connection.exchange
    if exchange is None:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "AUTH without an authentication method", "MQTT-4.12.0-7")
    _go_on_exchange(connection, exchange, exchange.read(packet))


def _leave_exchange(connection: Connection, packet: Disconnect) -> None:
    """The peer does not believe us, and says why."""
    exchange = connection.exchange
    assert exchange is not None
    reason = f"it does not trust this node: {reason_of(packet)}"
    exchange.not_proven(reason)
    connection.end(reason)


def reason_of(packet: Connack | Disconnect) -> str:
    """For the log and the state of a link: a stranger's 64 KiB, with line ends, have no place there."""
    return printable(packet.properties.get("reason_string", "")[:MAX_REASON]) or describe(packet.reason_code)
