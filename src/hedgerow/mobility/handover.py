"""Which clients a mobile broker sends to the fixed one, and when.

A client goes when everything that it is subscribed to is delegated, and has been for `after_s`, if it can be
told: by the extension, or by MQTT 5. The fixed broker is told first, and the client when that has heard it:
whoever connects there under its name before that is a stranger. Clients come back by the fixed broker's word,
as soon as a topic of theirs is recovered.

A client that was told and is still here, since it could not finish or does not reach the fixed broker, stays
for a while. So does one that connects here again rather than there: it knows nothing of Server References.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hedgerow.broker.session import Session
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.events import ClientSent
from hedgerow.mobility.plain import is_plain
from hedgerow.mobility.renewals import is_leaving, is_name_unverified, renew
from hedgerow.mqtt.extension import Renewal
from hedgerow.mqtt.packets import MQTT_5, MQTT_EXTENDED

if TYPE_CHECKING:
    from hedgerow.mobility.mobile import MobileNode

MAX_AT_ONCE = 20  # Each makes a connection: a thousand at one moment would be a storm of the broker's making.
PAUSE_S = 0.1
GOING_S = 10.0  # for a client to go; then it stays
GOING_LOOK_S = 0.5  # between two looks at those who were told, and may have to stay sooner
REST_S = 5.0  # until it is asked again
MAX_UNWILLING = 10_000
UNWILLING_S = 3_600.0  # until one is asked again that came back twice
AWAY_EXPIRY_S = 300.0  # So long a client may be at neither of the two brokers, as the extension says.


class Handover:
    def __init__(self, node: MobileNode, after_s: float) -> None:
        self._node = node
        self._after_s = after_s
        self._due: dict[str, float] = {}  # by client id: when it is to be looked at
        self._announced: dict[str, int] = {}  # by client id: the number that the fixed broker is to handle
        self.sent: dict[str, float] = {}
        """Clients that were told to go, and when; they are not known to be at either broker."""
        self._unwilling: dict[str, int] = {}  # how often they came back, or were turned away
        self._rested_at = 0.0
        # Not later than anyone is due: it is asked for with every event, and clients are many.
        self._look_at = float("inf")

    @property
    def deadline(self) -> float:
        return max(self._rested_at, self._look_at)

    def _wait(self, client_id: str, until: float) -> None:
        self._due[client_id] = until
        self._look_at = min(self._look_at, until)

    def delegated(self, topic_filter: str, now: float) -> None:
        """The fixed broker has acknowledged it."""
        registry = self._node.machine.registries.get(topic_filter)
        for callback in registry.callbacks if registry is not None else ():
            self.look(callback, now)

    def all_recovered(self) -> None:
        """Nothing is delegated any more, and nobody is to go."""
        announced, self._announced = self._announced, {}
        for client_id in announced:
            # Else it would wait for ever for the answer of a broker that is lost.
            session = self._node.broker.sessions.get(client_id)
            if session is not None and not self._node.machine.is_away(self._node.callback_of(session)):
                self._node.machine.client_attached(self._node.callback_of(session), self._node.broker.now)

    def look(self, callback: str, now: float) -> None:
        client_id = addresses.client_id_of(callback)
        if client_id is not None and client_id not in self._announced and client_id not in self.sent:
            self._wait(client_id, max(now + self._after_s, self._due.get(client_id, 0.0)))

    def arrived(self, client_id: str) -> None:
        """It is at the fixed broker."""
        self._unwilling.pop(client_id, None)
        self.forget(client_id)

    def returned(self, client_id: str, now: float) -> None:
        """It is connected here; perhaps it was to go."""
        if client_id in self.sent:
            times = self._count_unwilling(client_id)
            self._wait(client_id, now + (UNWILLING_S if times > 1 else REST_S))
        self.forget(client_id)

    def turned_away(self, client_id: str, now: float) -> None:
        """The fixed broker has another one of this id, perhaps not for long; or it does not take this one's
        user from here, and says so each time that it is asked."""
        times = self._count_unwilling(client_id)
        self.forget(client_id)
        self._wait(client_id, now + min(REST_S * 2 ** (times - 1), UNWILLING_S))

    def _count_unwilling(self, client_id: str) -> int:
        if len(self._unwilling) >= MAX_UNWILLING:
            self._unwilling.clear()
        self._unwilling[client_id] = self._unwilling.get(client_id, 0) + 1
        return self._unwilling[client_id]

    def forget(self, client_id: str) -> None:
        self.sent.pop(client_id, None)
        self._announced.pop(client_id, None)

    def serve(self, now: float) -> None:
        node = self._node
        for client_id, number in list(self._announced.items()):
            if node.machine.has_handled(number):
                del self._announced[client_id]
                self._send(client_id)
        if now < self.deadline:
            return
        for client_id, sent_at in list(self.sent.items()):
            if self._stays(client_id, sent_at, now):
                self._keep(client_id, now)
        due = [client_id for client_id, at in self._due.items() if at <= now][:MAX_AT_ONCE]
        if due:
            self._rested_at = now + PAUSE_S
        for client_id in due:
            del self._due[client_id]
            session = node.broker.sessions.get(client_id)
            if session is not None and not node.machine.may_send_clients:
                self._wait(client_id, now + REST_S)  # There is no fixed broker, or one too many.
            elif session is not None and self._may_go(session):
                self._announced[client_id] = node.machine.announce(
                    node.callback_of(session), now, session.username
                )
        self._look_at = min(self._due.values(), default=float("inf"))
        if self.sent:
            self._look_at = min(self._look_at, now + GOING_LOOK_S)

    def _stays(self, client_id: str, sent_at: float, now: float) -> bool:
        session = self._node.broker.sessions.get(client_id)
        connection = session.connection if session is not None else None
        if connection is None:
            return False
        is_over = connection.protocol_version == MQTT_5 and not is_leaving(connection)
        return is_over or sent_at + GOING_S <= now

    def _keep(self, client_id: str, now: float) -> None:
        session = self._node.broker.sessions[client_id]
        del self.sent[client_id]
        self._wait(client_id, now + REST_S)
        self._node.machine.client_attached(self._node.callback_of(session), now)

    def _may_go(self, session: Session) -> bool:
        connection = session.connection
        if connection is None or session.is_away or not self._node.machine.may_send_clients:
            return False
        if self._node.roaming.is_busy(session.client_id):
            return False  # Its session is on its way.
        if is_name_unverified(connection):
            return False  # The fixed broker could not tell it from anyone else.
        if connection.protocol_version not in (MQTT_5, MQTT_EXTENDED) or connection.carries_ids:
            return False
        if (
            connection.transport in ("ws", "wss")
            or (connection.transport == "mqtts") != self._node.links.is_fixed_tls
        ):
            return False  # It speaks what is not spoken at the address that there is to tell.
        held = session.subscriptions or {}
        is_told = self._node.machine.registries.is_told
        return bool(held) and all(is_told(name) and is_plain(record) for name, record in held.items())

    def _send(self, client_id: str) -> None:
        """It may have changed its mind, or its topics have gone hot: then it stays, and says so."""
        node = self._node
        session = node.broker.sessions.get(client_id)
        if session is None:
            return
        connection = session.connection
        is_told = False
        if connection is not None and self._may_go(session):
            self.sent[client_id] = node.broker.now
            self._look_at = min(self._look_at, node.broker.now + GOING_LOOK_S)
            is_told = renew(connection, Renewal.ACTIVE_TOPICS, node.links.fixed_address)
        if is_told:
            node.note(ClientSent(client_id, node.links.fixed_address))
        else:
            self.sent.pop(client_id, None)
            node.machine.client_attached(node.callback_of(session), node.broker.now)
