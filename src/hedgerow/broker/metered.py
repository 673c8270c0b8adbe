"""Publications of a client with a quota: each is asked for before it is taken.

A `Meter` says how much may come now. While there is room, packets go their usual way, cut so that no more are
handled together than there is room for. Where there is none:

* Of a client of MQTT 5, a publication at QoS 1 or 2 is answered with Quota exceeded (0x97) and is not passed
on; when all that has come is answered, nothing more is read until the meter has room for a whole burst again.
* All others have no such word, or none for QoS 0: what has come waits where it is, and nothing more is read
from the client until there is room. Nothing of that is lost.

Whoever keeps the meter ends the pause (`go_on`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from hedgerow.broker.connection import MUST_WAIT, Connection
from hedgerow.broker.handle_publish import refuse_for_quota
from hedgerow.broker.session import Pause
from hedgerow.mqtt.packets import MQTT_5, PUBLISH

WAITS: Final = -1
"""In the place of where to go on: not now."""
LEAST_PACKET_BYTES: Final = 5  # of a PUBLISH with a topic of one character


class Meter(Protocol):
    def room(self) -> int:
        """How many publications may come now; 0 where there is no room for bytes either."""

    def charge(self, messages: int, size: int) -> None: ...

    def may_refuse(self) -> bool:
        """May one more be answered that there is no room?"""

    def refused(self) -> None:
        """There was no room, and the connection is paused: it is to go on later."""


REFUSAL_WORK: Final = 50  # see `Broker.begin_turn`

ShortFunction = Callable[[Any, bytes, int, int, int], int]


def meter_publications(connection: Connection, meter: Meter | None) -> None:
    """From now on; None: no longer. Its session must be established."""
    session = connection.session
    if session is None:
        return
    plain = session.role.short_path
    connection.repeated = None
    if meter is None:
        connection.short_path = plain
        return
    metered: dict[int, ShortFunction] = dict(plain)
    for first in range(PUBLISH << 4, (PUBLISH << 4) + 16):
        metered[first] = partial(_publish, meter, plain.get(first))
    connection.short_path = metered


def go_on(connection: Connection) -> None:
    """There is room again."""
    connection.resume(Pause.METERED)
    if not connection.pauses & MUST_WAIT:
        connection.go_on()


def _publish(
    meter: Meter,
    short: ShortFunction | None,
    connection: Connection,
    data: bytes,
    position: int,
    body: int,
    stop: int,
) -> int:
    room = meter.room()
    if room <= 0:
        return _refuse(meter, connection, data, position, body, stop)
    if short is None:
        meter.charge(1, stop - position)
        return 0
    stats = connection.broker.stats
    before = stats.publish_received
    end = len(data)
    if (end - position) // LEAST_PACKET_BYTES > room:  # There may be more than there is room for.
        end = min(end, position + room * (stop - position))
    if end == len(data):
        after = short(connection, data, position, body, stop)
    else:
        after = short(connection, data[position:end], 0, body - position, stop - position)
        after = after and position + after
    connection.repeated = None  # It would not ask.
    if after:
        meter.charge(stats.publish_received - before, after - position)
    else:
        meter.charge(1, stop - position)
    return after


def _refuse(meter: Meter, connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
    is_acknowledged = connection.protocol_version == MQTT_5 and bool(data[position] & 0x06)
    is_answered = is_acknowledged and meter.may_refuse()
    if is_answered and not refuse_for_quota(connection, data[position], data[body:stop]):
        return 0  # It came before, or is wrong: that is not the meter's to say.
    connection.pause(Pause.METERED)
    meter.refused()
    connection.broker.work += REFUSAL_WORK
    return stop if is_answered else WAITS
