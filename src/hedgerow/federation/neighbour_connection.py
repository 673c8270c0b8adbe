"""The connection to a neighbour that this node dialled.

If a federated node answers, it is the link to that neighbour. If a broker answers that is not ours, a
federator may stand beside it: then this connection carries a tunnel to that one
(`foreign_neighbour.py`), through which another of these is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hedgerow.broker.connection import State
from hedgerow.broker.dialled import DialledConnection
from hedgerow.broker.exchange import Authentication, ConnectionSeal
from hedgerow.broker.handle_connect import carry_ids, resume
from hedgerow.broker.identified import IDENTIFIED_SHORT_PATH
from hedgerow.broker.session import Pause
from hedgerow.federation.foreign_neighbour import ForeignNeighbour
from hedgerow.federation.neighbours import ALREADY_LINKED, NEIGHBOUR_PREFIX
from hedgerow.federation.overlay.wire import Peer
from hedgerow.federation.tunnel.frames import FEDERATOR_TOPIC
from hedgerow.message import Properties
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.ids import NODE_PROPERTY
from hedgerow.mqtt.packets import MQTT_5, Connack, Connect, Publish, Subscription, Will
from hedgerow.mqtt.reasons import Reason
from hedgerow.topics import CONTROL_PREFIX, STATUS_PREFIX, is_local, status_node

if TYPE_CHECKING:
    from hedgerow.federation.federation import Federation

# Both ends are to know of a silent cut within two seconds: this end by its probes, the other, as a server
# does, by a keep alive that has run out one and a half times (MQTT-3.1.2-22).
KEEP_ALIVE_S = 1
PROBE_INTERVAL_S = 0.5
PROBE_MISSES = 3
TUNNEL = "tunnel"  # the transport of a connection inside one
FOREIGN = "a broker that is not ours, which is dialled without the key"
NOT_FOREIGN = "a federated node answers where another broker was; it is dialled again with the key"
NO_PROOF = "it does not prove that it has the federation key"
THROUGH_TUNNEL = " (tunnel)"


class NeighbourConnection(DialledConnection):
    __slots__ = (
        "_packet_id",
        "federation",
        "foreign",
        "opened_at",
        "password",
        "peer",
        "tunnel_id",
        "tunnels",
        "username",
    )

    def __init__(
        self,
        federation: Federation,
        peer: Peer,
        address: str,
        now: float,
        username: str | None = None,
        password: bytes | None = None,
        transport: str = "neighbour",
    ) -> None:
        broker = federation.broker
        super().__init__(broker, now, address, transport, PROBE_INTERVAL_S, PROBE_MISSES)
        self.federation = federation
        self.peer = peer  # as the overlay asked for it
        self.username = username
        self.password = password
        self.opened_at = now
        self.foreign: ForeignNeighbour | None = None  # where a broker answered that is not ours
        self.tunnels = federation.make_tunnels(is_federator=False)
        self.tunnel_id = federation.draw_tunnel_id()
        self.protocol_version = MQTT_5
        self._packet_id = 0
        self.open()

    def connect_packet(self) -> Connect:
        broker = self.broker
        properties: Properties = {
            "maximum_packet_size": broker.limits.peer_packet_bytes,
            "receive_maximum": broker.limits.peer_receive_maximum,
            "session_expiry_interval": int(self.federation.keeping.seconds),
            "user_property": ((NODE_PROPERTY, broker.node_id),),
        }
        prover = self.federation.dialler(self.address)
        if prover is not None:
            properties["authentication_method"] = prover.method
            properties["authentication_data"] = prover.opening
        packet = Connect(
            NEIGHBOUR_PREFIX + broker.node_id,
            MQTT_5,
            False,
            KEEP_ALIVE_S,
            self.username,
            self.password,
            # For the federator behind a tunnel; a broker of ours pays no heed to it.
            Will(FEDERATOR_TOPIC, self.tunnels.encode_will(self.tunnel_id)),
            properties,
        )
        if prover is not None:
            prover.connect = encode(packet, MQTT_5)
            self.exchange = Authentication(prover)
        return packet

    def seal_with(self, seal: ConnectionSeal | None) -> None:
        super().seal_with(seal)
        self.opened_at = self.broker.now  # CONNACK is the answer to our AUTH.

    @property
    def place(self) -> str:
        """The address that was dialled."""
        return self.address.removesuffix(THROUGH_TUNNEL)

    @property
    def round_trip_s(self) -> float:
        return self.broker.now - self.opened_at

    @property
    def is_of_broker(self) -> bool:
        return self.foreign is not None or super().is_of_broker

    @property
    def is_hurried(self) -> bool:
        return self.foreign is not None or super().is_hurried

    # CONNACK

    @property
    def has_proof(self) -> bool:
        """Is the far node the one that it says? Without a key all are believed."""
        exchange = self.exchange
        if not self.federation.has_key:
            return True
        return exchange is not None and exchange.proven_name == self.far_node

    def handle_accepted(self, packet: Connack) -> None:
        if self.far_node is None and self.seal is None:
            self._carry(packet)
        elif self.far_node == self.broker.node_id:
            self.end("this node itself, or another of its name")
        elif self.far_node is None or not self.has_proof:
            was_foreign = self.federation.forget_foreign(self.address)
            self.handle_not_proven(NOT_FOREIGN if was_foreign else NO_PROOF)
        elif self.federation.yields_to_accepted(self.far_node):
            # Both dialled, and the other's link is the one to stay.
            self.federation.dialled_again(self.peer, self.far_node, self.round_trip_s)
            self.leave(ALREADY_LINKED, is_for_good=False)
        else:
            doubt = self.federation.identities.doubt(self.far_node, self.place)
            if doubt is not None:
                self.federation.refuse(self.far_node, doubt)
                self.end(doubt)
                return
            carry_ids(self)
            self.short_path = IDENTIFIED_SHORT_PATH
            session = self.federation.take_session(self.far_node)
            self.bind(session, packet)
            resume(self)
            self.federation.linked(self)

    def _carry(self, packet: Connack) -> None:
        if self.transport == TUNNEL:
            self.end("what is at the other end of the tunnel is no federated node")
            return
        self.state = State.CONNECTED
        self.timer_at = None
        self.short_path = {}  # Nothing that comes is for the broker's clients.
        self.foreign = ForeignNeighbour(self, self.tunnels)
        self.probe.begin()
        self.foreign.begin(packet)

    def open_inside(self) -> NeighbourConnection:
        """The tunnel is open: who answers in it is the neighbour."""
        address = self.address + THROUGH_TUNNEL
        return NeighbourConnection(self.federation, self.peer, address, self.broker.now, transport=TUNNEL)

    def take_packet_id(self) -> int:
        self._packet_id += 1  # A foreign broker keeps no session of ours, and subscribes once.
        return self._packet_id

    def handle_refused(self, reason_code: int, reason: str) -> None:
        if self.far_node is not None and self.has_proof and self.federation.is_linked(self.far_node):
            self.federation.dialled_again(self.peer, self.far_node, self.round_trip_s)
            self.end(ALREADY_LINKED)
        elif self.far_node is not None:
            was_foreign = self.federation.forget_foreign(self.address)
            self.end(f"refused: {NOT_FOREIGN if was_foreign else reason}")
        elif reason_code == Reason.BAD_AUTHENTICATION_METHOD and self._may_be_foreign:
            self.federation.dial_foreign(self.peer, self.address)
            self.end(FOREIGN)
        else:
            self.end(f"refused: {reason}")

    @property
    def _may_be_foreign(self) -> bool:
        return self.exchange is not None and self.seal is None and self.transport != TUNNEL

    def handle_not_proven(self, reason: str) -> None:
        name = self.exchange.authenticator.peer if self.exchange is not None else ""
        self.federation.refuse(self.far_node or name or self.address, reason)
        super().handle_not_proven(reason)

    def handle_subscribed(self, answered: list[Subscription], codes: list[int]) -> None:
        """At a neighbour nothing is subscribed to; what it gets is decided there."""
        if self.foreign is not None:
            self.foreign.handle_subscribed(answered, codes)

    def handle_round_trip(self, round_trip_s: float) -> None:
        if self.foreign is None:  # which is beside the neighbour
            self.federation.measured(self, round_trip_s)

    # Time

    def check_time(self) -> None:
        if self.pauses & Pause.HELD:
            self.heard_at = self.broker.now  # It is we who do not listen.
        super().check_time()

    # Messages

    def handle_control(self, packet: Publish) -> bool:
        if self.foreign is not None:
            self.foreign.receive(packet)
            return True
        if not packet.topic.startswith(CONTROL_PREFIX):
            return False
        self.federation.receive_control(self, packet.topic, packet.payload)
        return True

    def name_here(self, topic: str) -> str | None:
        """As for one that connected: nodes alone tell of themselves, this one too."""
        is_here = topic.startswith(STATUS_PREFIX) and status_node(topic) == self.broker.node_id
        return None if is_here or is_local(topic) or self.broker.is_reserved(topic) else topic

    # The end

    def end(self, reason: str, with_will: bool = True) -> None:
        was_unanswered = self.state is State.NEW
        super().end(reason, with_will)
        if was_unanswered and reason not in (ALREADY_LINKED, FOREIGN):
            self.federation.dial_failed(self.peer, reason)
        if self.foreign is not None:
            self.foreign.lost(reason)
