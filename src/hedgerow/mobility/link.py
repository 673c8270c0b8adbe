"""The connection of a mobile broker to a fixed one, which the mobile one dials.

It is an ordinary MQTT connection: the stream's publications (`mobility/delegation`) go both ways on it,
under the topics that the document names, and events under their own. They are numbered, acknowledged and
written again by the stream, so that QoS 0 is enough for each of them. The mobile broker asks for the
extension of MQTT (version 0xFF), by which the callbacks of an event are in the header of its packet; a broker
that does not know it is asked again with MQTT 5.
"""

from __future__ import annotations

from typing import Protocol

from hedgerow.broker.broker import Broker
from hedgerow.broker.connection import State
from hedgerow.broker.dialled import DialledConnection
from hedgerow.broker.session import Session
from hedgerow.message import Message, Properties
from hedgerow.mobility.delegation import codec
from hedgerow.mobility.domains import is_domain
from hedgerow.mobility.roles import (
    ADDRESS_PROPERTY,
    DOMAIN_PROPERTY,
    FIXED_PREFIX,
    MOBILE_PREFIX,
    FixedBrokerRole,
    takes_sessions,
)
from hedgerow.mobility.sessions import find_own
from hedgerow.mqtt.ids import NODE_PROPERTY
from hedgerow.mqtt.packets import MQTT_5, Connack, Connect, Pubcallback, Publish, Subscription
from hedgerow.mqtt.reasons import Reason

# Both ends are to know of a silent cut within two seconds, as between neighbours of a federation.
KEEP_ALIVE_S = 1
PROBE_INTERVAL_S = 0.5
PROBE_MISSES = 3


def domain_of(properties: Properties) -> str:
    """What the far broker says of its domain, if that can be one."""
    pairs = properties.get("user_property", ())
    domain = next((value for name, value in pairs if name == DOMAIN_PROPERTY), "")
    return domain if is_domain(domain) else ""


class LinkOwner(Protocol):
    """Whoever has links to fixed brokers."""

    def linked(self, link: FixedLink) -> None: ...

    def receive(self, link: FixedLink, publication: Message) -> None: ...

    def ended(self, link: FixedLink, reason: str) -> None: ...


class FixedLink(DialledConnection):
    __slots__ = (
        "_node_broker",
        "_owner",
        "clients_at",
        "domain",
        "is_extended",
        "is_proved",
        "password",
        "takes_sessions",
        "url",
        "username",
        "wants_plain",
    )

    def __init__(
        self,
        owner: LinkOwner,
        broker: Broker,
        domain: str,
        url: str,
        clients_at: str,
        now: float,
        username: str | None = None,
        password: bytes | None = None,
        is_extended: bool = True,
    ) -> None:
        super().__init__(broker, now, url, "mobile", PROBE_INTERVAL_S, PROBE_MISSES)
        self.is_extended = is_extended
        self.wants_plain = False
        """The broker there does not know the extension, and is to be asked again without it."""
        self._owner = owner
        self._node_broker = broker
        self.domain = domain
        """That of the broker there, when it has told it."""
        self.takes_sessions = False
        """The broker there takes sessions, and gives them (`roaming.py`)."""
        self.url = url
        self.clients_at = clients_at
        self.is_proved = False
        """The broker there has said HELLO."""
        self.username = username
        self.password = password
        self.protocol_version = MQTT_5
        self.short_path = {}  # All that comes is for this end.
        self.open()

    def connect_packet(self) -> Connect:
        broker = self.broker
        properties: Properties = {
            "maximum_packet_size": broker.limits.packet_bytes,
            "receive_maximum": broker.limits.peer_receive_maximum,
            "user_property": ((NODE_PROPERTY, broker.node_id), (ADDRESS_PROPERTY, self.clients_at)),
        }
        client_id = MOBILE_PREFIX + broker.node_id
        return Connect(
            client_id,
            MQTT_5,
            True,
            KEEP_ALIVE_S,
            self.username,
            self.password,
            None,
            properties,
            is_extended=self.is_extended,
        )

    def handle_refused(self, reason_code: int, reason: str) -> None:
        self.wants_plain = self.is_extended and reason_code == Reason.UNSUPPORTED_PROTOCOL_VERSION
        super().handle_refused(reason_code, reason)

    def handle_accepted(self, packet: Connack) -> None:
        if self.far_node is None:
            self.end("the broker there is not one of ours, and supports no mobile brokers")
        elif self.far_node == self.broker.node_id:
            self.end("this node itself, or another of its name")
        else:
            self.domain = domain_of(packet.properties) or self.domain
            self.takes_sessions = takes_sessions(packet.properties)
            self.bind(self._take_session(self.far_node), packet)
            self.subscribe_there([Subscription(f"{self.domain}/{self.far_node}/#", 1)])
            self._owner.linked(self)

    def _take_session(self, fixed_id: str) -> Session:
        client_id = FIXED_PREFIX + fixed_id
        role = self._node_broker.roles[FixedBrokerRole.name]
        return find_own(self._node_broker, client_id) or self.broker.create_session(client_id, None, role)

    def handle_subscribed(self, answered: list[Subscription], codes: list[int]) -> None:
        """What is written to this broker comes whatever others may read."""

    def handle_control(self, packet: Publish) -> bool:
        self._owner.receive(self, codec.publication_of(packet))
        return True

    def handle_pubcallback(self, packet: Pubcallback) -> None:
        if not self.is_extended:
            super().handle_pubcallback(packet)
        self._owner.receive(self, codec.from_pubcallback(packet))

    def name_here(self, topic: str) -> str | None:
        return None

    def write(self, publication: Message) -> None:
        self.send_packet(codec.packet_of(publication, self.is_extended))

    def end(self, reason: str, with_will: bool = True) -> None:
        was_open = self.state is not State.CLOSED
        super().end(reason, with_will)
        if was_open:
            self._owner.ended(self, reason)
