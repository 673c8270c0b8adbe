"""A short connection to the broker beside a sidecar: it unsubscribes from something, and leaves.

Each is a line of that broker's log, if it publishes such lines. Without this nobody could tell a log that
says nothing of leaving from one in which nobody has left yet.
"""

from __future__ import annotations

from collections.abc import Callable

from hedgerow.broker.broker import Broker
from hedgerow.broker.connection import State
from hedgerow.broker.dialled import DialledConnection
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX
from hedgerow.mqtt.packets import MQTT_3_1_1, UNSUBACK, Connack, Connect, Disconnect, Unsubscribe
from hedgerow.mqtt.reasons import Reason

LOG_PROBE_SUFFIX = "-log"  # of the client id
LOG_PROBE_FILTER = "hedgerow/federation/log"  # Nobody publishes to it, and nobody is subscribed to it.
KEEP_ALIVE_S = 10
PACKET_ID = 1


class LogProbe(DialledConnection):
    """It has no session here: UNSUBACK is all that it waits for. `ended`: has it said all, and left?"""

    __slots__ = ("_ended", "_has_left", "_password", "_username")

    def __init__(
        self,
        broker: Broker,
        now: float,
        address: str,
        username: str | None,
        password: bytes | None,
        ended: Callable[[bool], None],
    ) -> None:
        super().__init__(broker, now, address, "log probe", KEEP_ALIVE_S, 1)
        self._username = username
        self._password = password
        self._ended = ended
        self._has_left = False
        self.protocol_version = MQTT_3_1_1
        self.open()

    def connect_packet(self) -> Connect:
        client_id = NEIGHBOUR_PREFIX + self.broker.node_id + LOG_PROBE_SUFFIX
        return Connect(client_id, MQTT_3_1_1, True, KEEP_ALIVE_S, self._username, self._password)

    def handle_accepted(self, packet: Connack) -> None:
        self.send_packet(Unsubscribe(PACKET_ID, [LOG_PROBE_FILTER]))

    def _handle(self, first: int, body: bytes) -> None:
        if first >> 4 != UNSUBACK:
            super()._handle(first, body)
            return
        self.send_packet(Disconnect(Reason.SUCCESS))
        self._has_left = True
        self.end("done")

    def end(self, reason: str, with_will: bool = True) -> None:
        was_open = self.state is not State.CLOSED
        super().end(reason, with_will)
        if was_open:
            self._ended(self._has_left)
