"""CONNECT, DISCONNECT and AUTH at the broker (MQTT 5 §3.1, §3.2, §3.14, §3.15).

A CONNECT is checked, then logged in (at once when anonymous or by certificate, else when the shell
has verified the password), then `establish` binds the connection to its session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hedgerow.broker.events import ClientConnected
from hedgerow.broker.ids import RIGHT_TOPIC, Inbound
from hedgerow.broker.mobile_link import MOBILE_SHORT_PATH, mobile_refusal
from hedgerow.broker.mobility import MOBILE_PREFIX, address_of, is_expected, is_kept
from hedgerow.broker.neighbours import (
    ALREADY_LINKED,
    NEIGHBOUR_PREFIX,
    NO_SIDECAR,
    SIDECAR_SUFFIX,
    proof_of,
    with_proof,
)
from hedgerow.broker.peers import PEER_SHORT_PATH
from hedgerow.broker.routes import WireForm
from hedgerow.broker.session import Session
from hedgerow.broker.withheld import set_peer
from hedgerow.errors import ProtocolError
from hedgerow.message import Properties
from hedgerow.mqtt import extension
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.ids import NODE_PROPERTY, is_of_bridge, node_of
from hedgerow.mqtt.outbox import Outbox
from hedgerow.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    MQTT_RENEWALS,
    NEVER_EXPIRES,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Renew,
)
from hedgerow.mqtt.reasons import Reason

if TYPE_CHECKING:
    from hedgerow.broker.broker import Broker
    from hedgerow.broker.connection import Connection
    from hedgerow.broker.limits import Limits


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
        return
    if connection.certificate_name is not None:
        establish(connection, packet, connection.certificate_name)
    elif packet.username is not None and connection.broker.verifies_passwords:
        connection.broker.request_login(Login(connection, packet.username, packet.password or b"", packet))
    elif connection.anonymous:
        # Without a password file a user name is a claim: no rights come of it.
        establish(connection, packet, None)
    else:
        connection.refuse_connect(Reason.NOT_AUTHORIZED, "anonymous access is not allowed", packet.client_id)


def _refusal(connection: Connection, packet: Connect) -> tuple[int, str] | None:
    properties = packet.properties
    limits = connection.broker.limits
    if "authentication_method" in properties:
        return Reason.BAD_AUTHENTICATION_METHOD, "no authentication method is configured [MQTT-4.12.0-1]"
    if not packet.client_id:
        if packet.protocol_version == MQTT_3_1:
            return Reason.CLIENT_IDENTIFIER_NOT_VALID, "MQTT 3.1 needs a client identifier"
        if packet.protocol_version in (MQTT_3_1_1, MQTT_RENEWALS) and not packet.clean_start:
            return Reason.CLIENT_IDENTIFIER_NOT_VALID, "no client identifier for a session [MQTT-3.1.3-8]"
    broker = connection.broker
    if len(broker.connections) > limits.connections:
        return Reason.SERVER_BUSY, f"{limits.connections} connections are open"
    if packet.client_id not in broker.sessions and len(broker.sessions) >= limits.sessions:
        return Reason.QUOTA_EXCEEDED, f"{limits.sessions} sessions are kept already"
    return None


def establish(connection: Connection, packet: Connect, username: str | None) -> None:
    """The client is who it says: give it its session, and the CONNACK."""
    broker = connection.broker
    client_id = packet.client_id
    owner = broker.sessions.get(client_id)
    if owner is not None and owner.is_bridge:
        reason = f"the session of {client_id!r} is that of a bridge of this broker"
        connection.refuse_connect(Reason.CLIENT_IDENTIFIER_NOT_VALID, reason, client_id)
        return
    is_peer = bool(client_id) and _is_peer(broker, packet, client_id, username)
    is_neighbour = client_id.startswith(NEIGHBOUR_PREFIX)
    if is_neighbour:
        refusal = _neighbour_refusal(broker, packet, is_peer)
        if refusal == ALREADY_LINKED:
            connection.send_packet(Connack(False, Reason.USE_ANOTHER_SERVER, _own_name(broker)))
            connection.end(refusal)
            return
        if refusal is not None:
            # A sidecar is to know that it will be refused for ever.
            properties = _own_name(broker) if refusal == NO_SIDECAR else {}
            connection.refuse_connect(Reason.NOT_AUTHORIZED, refusal, client_id, properties)
            return
    elif owner is not None and owner.username is not None and owner.username != username:
        # Nobody ends, or reads, the session of another user by guessing its client identifier.
        reason = f"the session of {client_id!r} belongs to another user"
        connection.refuse_connect(Reason.NOT_AUTHORIZED, reason, client_id)
        return
    is_mobile = client_id.startswith(MOBILE_PREFIX)
    if is_mobile and (refusal := mobile_refusal(broker, packet, is_peer, username)) is not None:
        connection.refuse_connect(Reason.NOT_AUTHORIZED, refusal, client_id)
        return
    answer = _answer(broker, packet)
    if not client_id:
        client_id = broker.assign_client_id()
        if packet.protocol_version == MQTT_5:
            answer["assigned_client_identifier"] = client_id  # MQTT-3.2.2-16
    if is_peer:
        answer["receive_maximum"] = broker.limits.peer_receive_maximum
        answer |= _own_name(broker)
    if is_neighbour and broker.neighbourhood is not None:
        node_id = client_id.removeprefix(NEIGHBOUR_PREFIX)
        proof = broker.neighbourhood.answer(node_id, proof_of(packet.properties))
        answer["user_property"] = with_proof(answer["user_property"], proof)
    if not connection.has_room_for(encode(Connack(False, Reason.SUCCESS, answer), packet.protocol_version)):
        connection.refuse_connect(Reason.PACKET_TOO_LARGE, "no room for the CONNACK", client_id)
        return
    discards = broker.durability.discards
    session, session_present = _take_session(broker, packet, client_id, username)
    session_present = session_present or is_expected(broker, packet, client_id)
    if is_peer:
        become_peer(connection)
    if is_mobile:
        connection.short_path = MOBILE_SHORT_PATH
    _negotiate(connection, session, packet)
    session.connection = connection
    connection.session = session
    session.will = None if is_neighbour or is_mobile else packet.will  # It is for a broker that is not ours.
    session.will_at = None
    session.timer_at = None
    broker.attach(connection)
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
    if connection.protocol_version == MQTT_RENEWALS and broker.supporter:
        connection.supporter = broker.supporter
        renewal = Renew(extension.Renewal.CONNECTION, broker.supporter, session_present=session_present)
        connection.send_packet(renewal)
    else:
        connection.send_packet(Connack(session_present, Reason.SUCCESS, answer))
    if broker.mobility is not None and session.is_client:
        broker.mobility.connected(connection)
        if not connection.is_connected:
            return
    if session_present:
        broker.resume(connection)
    if broker.durability.discards != discards:
        # If a crash brought the old session back, its received identifiers would swallow new messages.
        broker.durability.hold_back(connection)
    if is_neighbour and broker.neighbourhood is not None:
        broker.neighbourhood.accepted(connection)
    if is_mobile and broker.mobility is not None:
        broker.mobility.accepted(connection, address_of(packet.properties))


def _neighbour_refusal(broker: Broker, packet: Connect, is_peer: bool) -> str | None:
    """A session of this name is that of a federated node, and of the one that it names."""
    node_id = packet.client_id.removeprefix(NEIGHBOUR_PREFIX)
    said = node_of(packet.properties)
    if said is not None and node_id == said + SIDECAR_SUFFIX:
        return NO_SIDECAR
    if broker.neighbourhood is None:
        return "this node is in no federation; start it with --federation"
    if not is_peer:
        return f"no neighbour without the right to write {RIGHT_TOPIC}"
    if said != node_id or packet.clean_start:
        return "not as a federated node connects"
    return broker.neighbourhood.refusal(node_id, proof_of(packet.properties))


def _own_name(broker: Broker) -> Properties:
    return {"user_property": ((NODE_PROPERTY, broker.node_id),)}


def _take_session(
    broker: Broker, packet: Connect, client_id: str, username: str | None
) -> tuple[Session, bool]:
    session = broker.sessions.get(client_id)
    if session is not None and session.expires_at is not None and session.expires_at <= broker.now:
        broker.discard(session)  # Its timer is late.
        session = None
    if session is not None and session.connection is not None:
        # MQTT-3.1.4-3. A will that waits for its delay dies with the take-over, unless the
        # session ends with it (§3.1.2.5).
        session.connection.disconnect(Reason.SESSION_TAKEN_OVER, "")
        session = broker.sessions.get(client_id)
    if session is not None and session.is_neighbour:
        session.username = username  # It is the node's, whoever dialled last.
    # A session that was made without a user is not handed to one who has a name.
    if session is not None and (packet.clean_start or session.username != username):
        broker.discard(session)
        session = None
    if session is not None:
        return session, True
    return broker.create_session(client_id, username), False


def _answer(broker: Broker, packet: Connect) -> Properties:
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
    if packet.protocol_version == MQTT_RENEWALS:
        return extension.SESSION_EXPIRY_S
    if packet.protocol_version < MQTT_5:
        return 0.0 if packet.clean_start else float("inf")
    interval = packet.properties.get("session_expiry_interval", 0)
    return float("inf") if interval == NEVER_EXPIRES else float(interval)


def _keep_alive(packet: Connect, limits: Limits) -> int:
    if limits.keep_alive_s < 65_535 and not 0 < packet.keep_alive <= limits.keep_alive_s:
        return limits.keep_alive_s  # 3.1.1 clients cannot be told
    return packet.keep_alive


def _negotiate(connection: Connection, session: Session, packet: Connect) -> None:
    broker = connection.broker
    limits = broker.limits
    asked = packet.properties
    version = packet.protocol_version
    session.protocol_version = MQTT_3_1_1 if version == MQTT_RENEWALS else version
    connection.is_bridge = packet.is_bridge
    set_peer(broker, session, connection.carries_ids)
    session.far_origin = node_of(asked) if connection.carries_ids else None
    session.is_far_bridge = connection.carries_ids and is_of_bridge(asked)

    session.expiry_s = min(_session_expiry_s(packet), limits.session_expiry_s)
    session.expires_at = None
    # One that is stored stays so until it is discarded, even if that is now with the connection.
    session.durable = session.durable or (broker.durability.enabled and session.expiry_s > 0)
    connection.keep_alive_s = float(_keep_alive(packet, limits))
    connection.received_before = len(session.received or ())
    connection.problem_information = asked.get("request_problem_information", 1) == 1
    if not connection.carries_ids:
        connection.aliases_out_maximum = min(asked.get("topic_alias_maximum", 0), limits.topic_alias_maximum)
    if connection.carries_ids:
        form = WireForm.PEER
    elif connection.aliases_out_maximum or connection.maximum_packet_size or version == MQTT_RENEWALS:
        form = WireForm.OWN
    else:
        form = WireForm.MQTT_5 if version == MQTT_5 else WireForm.MQTT_3
    set_wire_form(broker, session, form)

    in_flight = limits.peer_in_flight if connection.carries_ids else limits.in_flight
    window = min(asked.get("receive_maximum", 65_535), in_flight)
    if session.outbox is not None:
        session.outbox.window = window
    elif window != limits.in_flight:
        session.outbox = Outbox(window)


def set_wire_form(broker: Broker, session: Session, form: WireForm) -> None:
    if form != session.wire_form:
        session.wire_form = form
        for topic_filter in session.subscriptions or ():
            broker.subscriptions.forget_routes(topic_filter)


def _is_peer(broker: Broker, packet: Connect, client_id: str, username: str | None) -> bool:
    """Is this another broker that gives ids, and may it?"""
    return (
        packet.protocol_version == MQTT_5
        and node_of(packet.properties) is not None
        and broker.access.may_write(username, client_id, RIGHT_TOPIC)
    )


def become_peer(connection: Connection) -> None:
    """Messages have their ids on this connection from now on."""
    connection.carries_ids = True
    connection.inbound = Inbound()
    connection.short_path = PEER_SHORT_PATH


def handle_disconnect(connection: Connection, packet: Packet) -> None:
    assert isinstance(packet, Disconnect)
    session = connection.session
    keeps = is_kept(connection.broker, session)
    if session is not None and connection.protocol_version == MQTT_RENEWALS and not keeps:
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
    # MQTT-3.14.4-3: a client that leaves for another reason than that it is done leaves its will.
    connection.closed_by_client(with_will=packet.reason_code != Reason.SUCCESS)


def handle_auth(connection: Connection, packet: Packet) -> None:
    # MQTT-4.12.0-7: only a client whose CONNECT named an authentication method may send it, and
    # such a CONNECT is refused.
    raise ProtocolError(Reason.PROTOCOL_ERROR, "AUTH without an authentication method", "MQTT-4.12.0-7")
